"""Text to the terminal as it comes, and how fast it came."""

import sys
import time
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from ...engine.generation import OutputDelta

_Writer = Callable[[str], object]


class Pace:
    """Times of one streamed answer; `text` is the text so far."""

    def __init__(self) -> None:
        self.text = ""
        self.finish_reason = "cancelled"
        self._tokens = 0
        self._began = time.perf_counter()
        self._first = self._last = self._began

    def take(self, delta: "OutputDelta") -> None:
        """Count a piece of the answer."""
        self._last = time.perf_counter()
        self._first = self._last if not self._tokens else self._first
        self._tokens += len(delta.token_ids)
        self.text += delta.text
        self.finish_reason = delta.finish_reason or self.finish_reason

    def line(self) -> str:
        """The figures on one line; tokens per second are those of decoding, without the first token."""
        seconds = self._last - self._first
        speed = f"{(self._tokens - 1) / seconds:.1f} tokens/s" if self._tokens > 1 and seconds > 0 else "one step"
        waited = self._first - self._began
        return f"{self._tokens} tokens, {speed}, first token after {waited:.2f} s, finish reason {self.finish_reason}"


def show(deltas: Iterator["OutputDelta"], pace: Pace, *, rendered: bool = False) -> bool:
    """Write the text of `deltas` to standard output as it comes; False if Ctrl-C stopped it, which also cancels it.

    With `rendered`, on a terminal, the text is markdown and thoughts are dim; elsewhere thoughts go to standard error.
    """
    try:
        with _screen(rendered) as (write, think):
            for delta in deltas:
                pace.take(delta)
                if delta.reasoning:
                    think(printable(delta.reasoning))
                if delta.text:
                    write(printable(delta.text))
    except KeyboardInterrupt:
        return False
    finally:
        deltas.close()  # type: ignore[attr-defined]  # a generator: closing it cancels the request
    return True


@contextmanager
def _screen(rendered: bool) -> Iterator[tuple[_Writer, _Writer]]:
    """Functions that show text, and thoughts, at once."""
    if rendered and sys.stdout.isatty():
        from ..chat.markdown import MarkdownStream

        with MarkdownStream() as stream:
            yield stream.push, stream.think
    else:
        yield _writer(sys.stdout), _writer(sys.stderr)


def _writer(file: TextIO) -> _Writer:
    def write(text: str) -> None:
        file.write(text)
        file.flush()

    return write


def printable(text: str) -> str:
    """`text` without the control characters by which a model's output could take over a terminal."""
    if not sys.stdout.isatty():
        return text
    return "".join(c if c in "\n\t" or unicodedata.category(c) != "Cc" else "\ufffd" for c in text)
