"""Answers that are messages with an address: gpt-oss's channels, and functionary's recipients."""

import logging
import re
from typing import Any

from .arguments import Tools, make_call
from .cursor import Cursor, Steps
from .format import ToolCall
from .output import Output
from .python_calls import read_code

_log = logging.getLogger("onnxlm.chat")
_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>", _START)
_LONGEST_HEADER = 400
_RECIPIENT = re.compile(r"\bto=(?:functions\.)?([\w.-]+)")
_NAME = re.compile(r"<\|channel\|>\s*(\w+)")
_THOUGHTS = ("analysis", "reflection")


def read_channels(cursor: Cursor, output: Output, tools: Tools) -> Steps[None]:
    """gpt-oss: `<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…`."""
    output.call()  # blanks beside messages mean nothing
    while (yield from cursor.peek()) or not cursor.ended:
        header, mark = yield from cursor.until((_MESSAGE,), _LONGEST_HEADER)
        known = _CHANNEL in header or _START in header or _RECIPIENT.search(header)
        if not mark or not known:
            output.say(_without_marks(cursor.commit()) if cursor.ended and not known else _rest(cursor, output))
            continue
        if output.cut and not cursor.pending and cursor.ended:
            return
        yield from _message(cursor, output, tools, header)


def _message(cursor: Cursor, output: Output, tools: Tools, header: str) -> Steps[None]:
    channel, recipient = _NAME.findall(header), _RECIPIENT.findall(header)
    if recipient:
        yield from _call(cursor, output, tools, recipient[-1])
        return
    cursor.commit()
    thought = bool(channel) and channel[-1] in _THOUGHTS
    if thought:
        output.begin_thought(header + _MESSAGE)
    yield from _body(cursor, output.think if thought else output.say)
    if thought:
        output.end_thought(_ENDS[0])


def _body(cursor: Cursor, show: Any) -> Steps[None]:
    """Show text up to the mark that ends the message."""
    from .cursor import first_mark, longest_overlap

    while True:
        start, mark = first_mark(cursor.pending, _ENDS)
        if not mark and not cursor.ended:
            start = len(cursor.pending) - longest_overlap(cursor.pending, _ENDS)
        show(cursor.consume(start))
        cursor.commit()
        if mark or cursor.ended:
            cursor.consume(len(mark) if mark != _START else 0)
            return
        yield


def _call(cursor: Cursor, output: Output, tools: Tools, name: str) -> Steps[None]:
    text = yield from cursor.json()
    call = make_call(tools, name, text) if text is not None else None
    yield from cursor.take(*_ENDS[:3])
    raw = cursor.commit()
    if call is not None:
        output.call(call)
    elif not (output.cut and cursor.ended):
        _failed(output, raw)


def _rest(cursor: Cursor, output: Output) -> str:
    """A header that is none: text, unless it was cut off."""
    text = cursor.commit()
    if output.cut and _CHANNEL in text:
        return ""
    return _without_marks(text)


def _without_marks(text: str) -> str:
    for mark in (_START, _CHANNEL, _MESSAGE, "<|constrain|>", *_ENDS):
        text = text.replace(mark, "")
    return text


def _failed(output: Output, text: str) -> None:
    if text.strip():
        _log.warning("What looked like a tool call could not be read, and is text: %d characters", len(text))
    output.say(text)


def read_recipients(cursor: Cursor, output: Output, tools: Tools) -> Steps[None]:
    """functionary: `all\\ntext>>>add\\n{…}`; the prompt has written the first `>>>`."""
    name, mark = yield from cursor.until(("\n",), _LONGEST_HEADER)
    marks = tuple(f">>>{name}\n" for name in ("all", *tools))
    recipient = name.strip().removeprefix(">>>")
    if not mark or recipient not in ("all", *tools):
        output.say(cursor.commit())
        recipient = "all"
    while recipient:
        if recipient == "all":
            cursor.commit()
            recipient = yield from _recipient_text(cursor, output, marks)
        else:
            recipient = yield from _recipient_call(cursor, output, tools, recipient, marks)


def _recipient_text(cursor: Cursor, output: Output, marks: tuple[str, ...]) -> Steps[str]:
    from .cursor import first_mark, longest_overlap

    while True:
        start, mark = first_mark(cursor.pending, marks)
        if not mark and not cursor.ended:
            start = len(cursor.pending) - longest_overlap(cursor.pending, marks)
        output.say(cursor.consume(start))
        if mark or cursor.ended:
            cursor.commit()
            cursor.consume(len(mark))
            return mark.strip().removeprefix(">>>")
        yield


def _recipient_call(cursor: Cursor, output: Output, tools: Tools, name: str, marks: tuple[str, ...]) -> Steps[str]:
    calls: list[ToolCall] = []
    if (yield from cursor.peek()) == "{":
        text = yield from cursor.json()
        call = make_call(tools, name, text) if text is not None else None
        calls = [call] if call else []
    elif name == "python":
        calls = (yield from read_code(cursor, tools)) or []
    following = (yield from cursor.take(*marks)) if calls else ""
    raw = cursor.commit()
    if calls:
        output.call(*calls)
        return following.strip().removeprefix(">>>") or ("all" if cursor.pending else "")
    if not (output.cut and cursor.ended):
        _failed(output, raw)
    return "all" if cursor.pending or not cursor.ended else ""
