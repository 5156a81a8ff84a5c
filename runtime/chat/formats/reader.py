"""Separates an answer into thoughts, text and tool calls while it arrives."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .arguments import Tools
from .channels import read_channels, read_recipients
from .cursor import Cursor, Steps, first_mark, longest_overlap
from .format import MARK, CallFrame, ChatFormat, ToolCall
from .json_calls import read_named, read_objects
from .marked_calls import read_marked
from .output import Output
from .python_calls import read_code, read_python
from .tagged_calls import read_tagged

_log = logging.getLogger("onnxlm.chat")
_PIECE = 2048  # characters that are looked at together
_QUOTES = "`'\""  # a mark between them is spoken of, not used
_MARK_LETTERS = "<[◁"
_SEPARATORS = (",", ";")


@dataclass(frozen=True)
class AnswerPart:
    """What a piece of an answer adds."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()


class AnswerReader:
    """Reads one answer. Nothing is lost: what turns out to be no call is text, and the log says so.

    Args:
        chat: how the model writes.
        tools: the schema of the arguments of each tool that exists; a call of another one is text.
        in_thought: the prompt has opened a thought already.
        keep_thoughts: leave thoughts in the text, with their marks.

    Attributes:
        thinking: whether what came last belongs to a thought.

    Example:
        >>> reader = AnswerReader(ChatFormat(calls=HERMES), {"add": {}})
        >>> reader.push("Let me see.<tool_").content
        'Let me see.'
        >>> part = reader.push('call>{"name": "add", "arguments": {"a": 1}}</tool_call>')
        >>> part.calls[0].name, part.calls[0].arguments
        ('add', '{"a": 1}')
    """

    def __init__(
        self, chat: ChatFormat, tools: Tools | None = None, *, in_thought: bool = False, keep_thoughts: bool = False
    ) -> None:
        self._chat = chat
        self._tools = dict(tools or {})
        self._cursor = Cursor()
        self._output = Output(keep_thoughts=keep_thoughts)
        self._output.thinking = in_thought and chat.thoughts is not None
        self._steps = self._read()
        self._running = True

    @property
    def thinking(self) -> bool:
        """Whether what came last belongs to a thought."""
        return self._output.thinking

    def push(self, text: str) -> AnswerPart:
        """Take the next piece of the answer; returns what is certain now."""
        for start in range(0, len(text), _PIECE):
            self._cursor.push(text[start : start + _PIECE])
            self._advance()
        return AnswerPart(*self._output.take())

    def finish(self, *, cut: bool = False) -> AnswerPart:
        """The answer is complete; with `cut`, it was stopped for its length, and a call that was begun is dropped."""
        self._cursor.ended = True
        self._output.cut = cut
        self._advance()
        self._output.close()
        return AnswerPart(*self._output.take())

    def _advance(self) -> None:
        try:
            if self._running:
                next(self._steps)
        except StopIteration:
            self._running = False

    def _read(self) -> Steps[None]:
        frame = self._chat.calls
        if frame is not None and frame.shape in _MESSAGES:
            yield from _MESSAGES[frame.shape](self._cursor, self._output, self._tools)
            return
        if frame is not None and frame.bare and self._tools and not self._output.thinking:
            yield from self._bare(frame)
        while not (self._cursor.ended and not self._cursor.pending):
            yield from (self._thought() if self._output.thinking else self._text())

    def _thought(self) -> Steps[None]:
        thoughts = self._chat.thoughts
        assert thoughts is not None
        again = () if self._output.thought_begun else (thoughts.open_mark,)  # some models open what the prompt opened
        yield from self._show((thoughts.close_mark, *again), self._output.think, self._meet_in_thought)

    def _meet_in_thought(self, mark: str) -> Steps[None]:
        if self._chat.thoughts and mark == self._chat.thoughts.close_mark:
            yield from self._thought_ends(mark)
        elif self._output.thought_begun:
            self._output.think(self._cursor.consume(len(mark)))
        else:
            self._cursor.consume(len(mark))

    def _thought_ends(self, mark: str) -> Steps[None]:
        self._cursor.consume(len(mark))
        self._cursor.commit()
        self._output.end_thought(mark)
        if self._chat.wrapper and self._chat.wrapper[0] == mark:
            self._output.wrap(mark, opens=True)
        frame = self._chat.calls
        if frame is not None and frame.bare and self._tools:
            yield from self._bare(frame)

    def _text(self) -> Steps[None]:
        yield from self._show(self._marks(), self._output.say, self._meet)

    def _show(
        self, marks: tuple[str, ...], show: Callable[[str], None], meet: Callable[[str], Steps[None]]
    ) -> Steps[None]:
        """Show text up to the next mark, and deal with that."""
        cursor = self._cursor
        start, mark = first_mark(cursor.pending, marks)
        if mark and not cursor.ended and any(one.startswith(cursor.pending[start:]) for one in marks if one != mark):
            yield  # a longer mark may begin here
            start, mark = first_mark(cursor.pending, marks)
        if not mark and not cursor.ended:
            start = len(cursor.pending) - longest_overlap(cursor.pending, marks)
        show(cursor.consume(start))
        cursor.commit()
        if mark:
            yield from meet(mark)
        elif not cursor.ended:
            yield

    def _marks(self) -> tuple[str, ...]:
        chat = self._chat
        thoughts: tuple[str, ...] = ()
        if chat.thoughts:
            thoughts = (chat.thoughts.open_mark, chat.thoughts.close_mark)
        if thoughts and self._output.begun and thoughts[0][0] not in _MARK_LETTERS:
            thoughts = thoughts[1:]  # words that open a thought are words elsewhere
        calls = chat.calls.begin_marks if chat.calls and self._tools else ()
        return tuple(filter(None, (*thoughts, *calls, *(chat.wrapper or ()))))

    def _meet(self, mark: str) -> Steps[None]:
        chat, cursor, output = self._chat, self._cursor, self._output
        if output.last in _QUOTES and output.last:
            output.say(cursor.consume(len(mark)))
        elif chat.thoughts and mark == chat.thoughts.open_mark:
            cursor.consume(len(mark))
            output.begin_thought(mark)
        elif chat.thoughts and mark == chat.thoughts.close_mark:
            cursor.consume(len(mark))
            _log.info("An answer closes a thought that it did not open.")
        elif chat.wrapper and mark in chat.wrapper:
            cursor.consume(len(mark))
            output.wrap(mark, opens=mark == chat.wrapper[0])
        elif chat.calls and mark == chat.calls.code_mark and mark != chat.calls.open_mark:
            yield from self._code(mark)
        elif chat.calls:
            yield from self._calls(chat.calls)
        cursor.commit()

    def _bare(self, frame: CallFrame) -> Steps[None]:
        """Calls that nothing announces: they are the whole answer, or it has none."""
        first = yield from self._cursor.peek()
        if first in ("{", "["):
            calls, whole = yield from self._block(frame)
            yield from self._cursor.blanks()
            if whole and calls and self._cursor.ended and not self._cursor.pending:
                self._output.call(*calls)
                self._cursor.commit()
                return
        self._failed(self._cursor.commit(), warn=first in ("{", "["))

    def _calls(self, frame: CallFrame) -> Steps[None]:
        _, whole = yield from self._block(frame, self._output.call)
        rest = self._cursor.commit()
        if whole or not rest.strip():
            self._output.say_after_call(rest)
        else:
            self._failed(rest)

    def _code(self, mark: str) -> Steps[None]:
        """What follows the mark of built-in tools: JSON, a call as in Python, or code."""
        self._cursor.consume(len(mark))
        frame = self._chat.calls
        assert frame is not None
        if (yield from self._cursor.peek()) == "{":
            calls, whole = yield from self._block(frame)
        else:
            calls = (yield from read_code(self._cursor, self._tools)) or []
            whole = bool(calls)
        rest = self._cursor.commit()
        if whole and calls:
            self._output.call(*calls)
        else:
            self._failed(rest)

    def _block(self, frame: CallFrame, made: Callable[..., None] | None = None) -> Steps[tuple[list[ToolCall], bool]]:
        """All calls that stand together, and whether nothing else stood between them; each is told as it is made."""
        cursor, found = self._cursor, list[ToolCall]()
        if frame.section_mark:
            yield from cursor.take(frame.section_mark, *frame.aliases)
        while True:
            if frame.open_mark and not (yield from self._opened(frame, found)):
                break
            calls = yield from (yield from self._shape(frame))(cursor, frame, self._tools)
            if calls is None:
                return found, False
            found += calls
            yield from self._closed(frame.closing_marks)
            if made is not None:
                made(*calls)
                cursor.commit()
            if not frame.open_mark and not (yield from self._another(frame)):
                break
        if found:
            yield from self._closed(frame.end_marks)
        return found, bool(found)

    def _opened(self, frame: CallFrame, found: list[ToolCall]) -> Steps[bool]:
        """Whether another call is opened; after the first, some models write one object after the other."""
        if (yield from self._cursor.take(frame.open_mark, *frame.aliases)):
            return True
        return frame.shape == "json" and bool(found) and (yield from self._cursor.peek()) == "{"

    def _shape(self, frame: CallFrame) -> "Steps[ReadCalls]":
        """How the next call is written: some models name a tool before JSON, whatever their template does."""
        begins = yield from self._cursor.peek()
        if frame.shape in ("json", "named"):
            return read_objects if begins in ("{", "[") else read_named
        return _SHAPES[frame.shape]

    def _closed(self, parts: tuple[str, ...]) -> Steps[None]:
        """Move past the end of a call; models may omit parts."""
        for part in parts:
            yield from self._cursor.take(part, *MARK.findall(part))

    def _another(self, frame: CallFrame) -> Steps[bool]:
        """Whether another call follows, where no mark opens one."""
        separator = yield from self._cursor.take(*filter(None, (frame.separator.strip(), *_SEPARATORS)))
        if frame.shape == "python":
            return bool(separator) or (yield from self._is_word(frame))
        following = yield from self._cursor.peek()
        return following in ("{", "[") or (bool(separator) and bool(following))

    def _is_word(self, frame: CallFrame) -> Steps[bool]:
        following = yield from self._cursor.peek()
        return bool(frame.end_marks) and following.isidentifier()

    def _failed(self, text: str, *, warn: bool = True) -> None:
        if self._output.cut and text.strip() and warn:
            _log.info("A tool call was cut off by the limit on tokens.")
            self._output.cut_call = True
            return
        if warn and text.strip():
            _log.warning("What looked like a tool call could not be read, and is text: %d characters", len(text))
        self._output.say(text)


ReadCalls = Callable[[Cursor, CallFrame, Tools], Steps[list[ToolCall] | None]]
_SHAPES: Mapping[str, ReadCalls] = {
    "json": read_objects,
    "keyed": read_objects,
    "named": read_named,
    "tagged": read_tagged,
    "python": read_python,
    "marked": read_marked,
}
_MESSAGES: Mapping[str, Callable[[Cursor, Output, Tools], Steps[None]]] = {
    "channels": read_channels,
    "recipients": read_recipients,
}
