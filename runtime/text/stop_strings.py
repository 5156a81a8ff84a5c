"""Stop strings, found in streamed text wherever its pieces begin and end."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stopped:
    """What `StopStrings.push` found: text that is safe to show, and the stop string that ended it, if any."""

    text: str
    stop: str | None = None


class StopStrings:
    """Watches streamed text for stop strings, wherever pieces begin and end.

    Text is held back only while it is the beginning of a stop string. Where several match, the one whose last
    character comes first wins (of those, the longest), as if the text came character by character.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""

    def push(self, text: str) -> Stopped:
        """Take the next piece. Text after a stop string is dropped, and nothing is held back then."""
        text = self._held + text
        self._held = ""
        found = [(start + len(stop), start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if found:
            _, start, stop = min(found)
            return Stopped(text[:start], stop)
        held = max((overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - held :]
        return Stopped(text[: len(text) - held])

    def flush(self) -> str:
        """Return the text still held back, when the answer ends for another reason."""
        held, self._held = self._held, ""
        return held


def overlap(text: str, stop: str) -> int:
    """Length of the longest suffix of `text` that is a proper prefix of `stop`."""
    longest = min(len(stop) - 1, len(text))
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)
