"""A text that arrives in pieces, read by parsers that are generators: they yield when they need more text."""

import re
from collections.abc import Generator, Sequence
from typing import TypeVar

Result = TypeVar("Result")
Steps = Generator[None, None, Result]  # yields when more text is needed
_BLANKS = re.compile(r"\s*")
_OUTSIDE = re.compile(r"[\s0-9A-Za-z.+\-:,]*")  # of strings: what JSON consists of beside quotes and brackets
_INSIDE = re.compile(r'[^"\\]*')
_PLAIN = re.compile(r"[^\"'()\[\]{}\\]*")
_CLOSING = {"(": ")", "[": "]", "{": "}"}


class Cursor:
    """Pieces of a text, consumed from the front. Each character is looked at a bounded number of times.

    Attributes:
        pending: what has arrived and is not consumed.
        ended: nothing more will arrive.
    """

    def __init__(self) -> None:
        self.pending = ""
        self.ended = False
        self._consumed: list[str] = []

    def push(self, text: str) -> None:
        """More text."""
        self.pending += text

    def consume(self, size: int) -> str:
        """Return the next `size` characters and move past them."""
        text, self.pending = self.pending[:size], self.pending[size:]
        if text:
            self._consumed.append(text)
        return text

    def unread(self, text: str) -> None:
        """Take back what was consumed last."""
        if not text:
            return
        assert self._consumed[-1].endswith(text)
        self._consumed[-1] = self._consumed[-1][: -len(text)]
        self.pending = text + self.pending

    def commit(self) -> str:
        """What was consumed since the last commit; it is forgotten."""
        text = "".join(self._consumed)
        self._consumed.clear()
        return text

    def blanks(self) -> Steps[None]:
        """Move past blanks."""
        while True:
            found = _BLANKS.match(self.pending)
            self.consume(found.end() if found else 0)
            if self.pending or self.ended:
                return
            yield

    def take(self, *literals: str) -> Steps[str]:
        """Move past blanks and the first of these texts that comes next; "" if none does."""
        yield from self.blanks()
        while not self.ended and any(one.startswith(self.pending) and one != self.pending for one in literals):
            yield
        found = next((one for one in literals if one and self.pending.startswith(one)), "")
        self.consume(len(found))
        return found

    def peek(self) -> Steps[str]:
        """The next character that is no blank; "" at the end."""
        yield from self.blanks()
        return self.pending[:1]

    def until(self, marks: Sequence[str], limit: int | None = None) -> Steps[tuple[str, str]]:
        """The text before the first of `marks`, and that mark, both consumed; the mark is "" at the end or `limit`."""
        parts, size = [], 0
        while True:
            start, mark = first_mark(self.pending, marks)
            if mark or self.ended:
                parts.append(self.consume(start if mark else len(self.pending)))
                return "".join(parts), self.consume(len(mark))
            parts.append(self.consume(len(self.pending) - longest_overlap(self.pending, marks)))
            size += len(parts[-1])
            if limit is not None and size > limit:
                return "".join(parts), ""
            yield

    def json(self) -> Steps[str | None]:
        """The text of a JSON object or list that comes next; None if it breaks off or cannot be one."""
        if (yield from self.peek()) not in ("{", "["):
            return None
        return (yield from self._balanced(_OUTSIDE, '"'))

    def brackets(self) -> Steps[str | None]:
        """The text from a bracket to the one that closes it, as Python has them; None if that does not come."""
        if (yield from self.peek()) not in _CLOSING:
            return None
        return (yield from self._balanced(_PLAIN, "\"'"))

    def _balanced(self, outside: re.Pattern[str], quotes: str) -> Steps[str | None]:
        parts: list[str] = []
        closing: list[str] = []  # brackets that are to come
        while True:
            if not self.pending:
                if self.ended:
                    return None
                yield
                continue
            found = outside.match(self.pending)
            parts.append(self.consume(found.end() if found else 0))
            if not self.pending:
                continue
            letter = self.pending[0]
            if letter in quotes:
                part = yield from self._string(letter)
                if part is None:
                    return None
                parts.append(part)
            elif letter in _CLOSING:
                closing.append(_CLOSING[letter])
                parts.append(self.consume(1))
            elif closing and letter == closing[-1]:
                closing.pop()
                parts.append(self.consume(1))
                if not closing:
                    return "".join(parts)
            else:
                return None

    def _string(self, quote: str) -> Steps[str | None]:
        parts = [self.consume(1)]
        inside = _INSIDE if quote == '"' else re.compile(r"[^'\\]*")
        while True:
            found = inside.match(self.pending)
            parts.append(self.consume(found.end() if found else 0))
            if self.pending.startswith(quote):
                parts.append(self.consume(1))
                return "".join(parts)
            if len(self.pending) > 1:  # a backslash and what it escapes
                parts.append(self.consume(2))
            elif self.ended:
                return None
            else:
                yield


def first_mark(text: str, marks: Sequence[str]) -> tuple[int, str]:
    """Where the first of `marks` begins, and the longest that begins there; "" if there is none."""
    found = [(start, -len(mark), mark) for mark in marks if (start := text.find(mark)) >= 0]
    if not found:
        return len(text), ""
    start, _, mark = min(found)
    return start, mark


def longest_overlap(text: str, marks: Sequence[str]) -> int:
    """Length of the longest end of `text` that is a proper beginning of one of `marks`."""
    return max((_overlap(text, mark) for mark in marks), default=0)


def _overlap(text: str, mark: str) -> int:
    first = mark[0]
    tail = text[-(len(mark) - 1) :] if len(mark) > 1 else ""
    start = tail.find(first)
    while start >= 0:
        if mark.startswith(tail[start:]):
            return len(tail) - start
        start = tail.find(first, start + 1)
    return 0
