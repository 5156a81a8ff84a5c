"""Markdown on a terminal while it streams: finished blocks are printed for good, the last one is drawn anew."""

from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_FENCES = ("```", "~~~")


class MarkdownStream:
    """Text in pieces, shown as markdown. Colours obey NO_COLOR and TERM.

    Only the last block is redrawn, so an answer of any length scrolls as it should.

    Args:
        console: where to; default: standard output.
    """

    def __init__(self, console: "Console | None" = None) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = console or Console(highlight=False)
        self._live = Live(console=self._console, transient=True, refresh_per_second=8, vertical_overflow="crop")
        self._tail = self._thought = ""

    def __enter__(self) -> "MarkdownStream":
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._live.stop()
        self._end_thought()
        self._print(self._tail)
        self._tail = ""

    def push(self, text: str) -> None:
        """Add a piece."""
        self._end_thought()
        finished, self._tail = split_blocks(self._tail + text)
        self._print(finished)
        self._live.update(_rendered(self._tail))

    def think(self, text: str) -> None:
        """Add a piece of the thoughts in front of the text: dim, and as they are."""
        finished, mark, self._thought = (self._thought + text).rpartition("\n")
        if mark and finished.strip():
            self._console.print(_dim(finished))
        self._live.update(_dim(self._thought))

    def _end_thought(self) -> None:
        if self._thought.strip():
            self._console.print(_dim(self._thought))
        self._thought = ""

    def _print(self, text: str) -> None:
        if text.strip():
            self._console.print(_rendered(text))


def split_blocks(text: str) -> tuple[str, str]:
    """Markdown cut behind its last finished block: a blank line that is in no fenced code ends one."""
    cut, place, fence = 0, 0, ""
    for line in text.splitlines(keepends=True):
        place += len(line)
        bare = line.strip()
        if fence:
            fence = "" if bare.startswith(fence) else fence
        elif bare.startswith(_FENCES):
            fence = bare[:3]
        elif not bare and line.endswith("\n"):
            cut = place
    return text[:cut], text[cut:]


def _dim(text: str) -> "RenderableType":
    from rich.text import Text

    return Text(text, style="dim italic")


def _rendered(text: str) -> "RenderableType":
    from rich.markdown import Markdown

    return Markdown(text, hyperlinks=False)
