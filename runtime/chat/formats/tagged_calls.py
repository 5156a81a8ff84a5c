"""Calls whose arguments stand between tags, strings without quotes: Qwen3-Coder, GLM, MiniMax, Seed-OSS, DeepSeek."""

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from .arguments import Tools, make_call, object_of, value_text
from .cursor import Cursor, Steps
from .format import CallFrame, ToolCall
from .json_calls import flexible

TYPE = re.compile(r'string="(?:true|false)"')  # DeepSeek V3.2 says of each value whether it is a string
_MOST_CLOSINGS = 256  # closing tags inside values of one call


def read_tagged(cursor: Cursor, frame: CallFrame, tools: Tools) -> Steps[list[ToolCall] | None]:
    """One call up to the tag that closes it; None if something in it is no argument."""
    body = yield from _body(cursor, frame)
    head = _head_pattern(frame).match(body) if body is not None else None
    if body is None or head is None or head["name"] not in tools:
        return None
    found: dict[str, str] = {}
    place = head.end()
    while place < len(body):
        argument = _argument_pattern(frame).match(body, place)
        if argument is None or argument["key"] in found:
            return None
        found[argument["key"]] = _value(argument, tools[head["name"]])
        place = argument.end()
    call = make_call(tools, head["name"], object_of(found))
    return [call] if call else None


def closing(frame: CallFrame) -> str:
    """The first tag of what closes a call: what ends its arguments."""
    return frame.close_mark.split(">", 1)[0] + ">"


def _body(cursor: Cursor, frame: CallFrame) -> Steps[str | None]:
    """Everything up to the closing tag that follows an argument's end: inside a value it is text."""
    body, end = "", closing(frame)
    for _ in range(_MOST_CLOSINGS):
        part, mark = yield from cursor.until((end,))
        body += part
        last = body.rstrip()
        if mark and (last.endswith(frame.after_value.strip()) or frame.before_key.strip() not in last):
            return body.rstrip()
        if not mark:
            return None
        body += mark
    return None


def _value(argument: re.Match[str], schema: Mapping[str, Any]) -> str:
    text, key, kind = argument["value"], argument["key"], argument.groupdict().get("kind")
    if kind == "true":
        return json.dumps(text, ensure_ascii=False)
    described: Mapping[str, Any] = {} if kind == "false" else schema
    return value_text(text, described, key)


@lru_cache
def _head_pattern(frame: CallFrame) -> re.Pattern[str]:
    before = flexible(frame.before_call)
    behind = flexible(frame.before_arguments) if frame.before_arguments.strip() else r"\s*"
    return re.compile(rf"{before}(?P<name>[\w.-]+?){behind}(?=\s*{flexible(frame.before_key)}|\s*$)")


@lru_cache
def _argument_pattern(frame: CallFrame) -> re.Pattern[str]:
    """One argument. A line break that the template writes beside a value is not part of the value."""
    key, value, after = frame.before_key.strip(), frame.before_value, frame.after_value
    first = "\n?" if value.endswith("\n") else ""
    last = "\n?" if after.startswith("\n") else ""
    between = TYPE.sub("string=TYPE", value.strip())
    opened = flexible(between).removesuffix(r"\s*").replace("string=TYPE", 'string="(?P<kind>true|false)"')
    following = rf"(?=\s*(?:{re.escape(key)}|$))"
    return re.compile(
        rf"\s*{re.escape(key)}(?P<key>[^<>\"]+?){opened}{first}(?P<value>.*?){last}{re.escape(after.strip())}\s*{following}",
        re.DOTALL,
    )
