"""Calls that are JSON: objects with a name, objects whose only key is the name, and a name before its arguments."""

import re
from functools import lru_cache

from .arguments import Tools, elements, loaded, make_call, members
from .cursor import Cursor, Steps
from .format import ID, CallFrame, ToolCall

_LONGEST_NAME = 300  # characters between a mark and the arguments
_MISTRAL = r"(?:\[CALL_ID\]\s*\w+\s*)?(?:\[ARGS\])?"  # whose models write this, whatever their template does
_ARGUMENTS = ("arguments", "parameters")


def read_objects(cursor: Cursor, frame: CallFrame, tools: Tools) -> Steps[list[ToolCall] | None]:
    """One object, or a list of them; None if it is none, or not all are calls."""
    text = yield from cursor.json()
    entries = elements(text) if text is not None else None
    make = _keyed if frame.shape == "keyed" else _object
    calls = [make(entry, frame, tools) for entry in entries or ()]
    made = [call for call in calls if call]
    return made if made and len(made) == len(calls) else None


def read_named(cursor: Cursor, frame: CallFrame, tools: Tools) -> Steps[list[ToolCall] | None]:
    """A name, what stands behind it, and an object."""
    head, mark = yield from cursor.until(("{",), _LONGEST_NAME)
    found = _name_pattern(frame).fullmatch(head)
    if not mark or found is None:
        return None
    text = yield from _object_after_brace(cursor)
    call = make_call(tools, found["name"], text, found["id"])
    if call is None:
        return None
    yield from cursor.take(frame.after_arguments.strip())
    return [_with_name_as_id(call, found["id"]) if frame.id_is_name else call]


def _object_after_brace(cursor: Cursor) -> Steps[str | None]:
    cursor.unread("{")
    return (yield from cursor.json())


def _with_name_as_id(call: ToolCall, number: str | None) -> ToolCall:
    return ToolCall(f"functions.{call.name}:{number or 0}", call.name, call.arguments)


def _object(entry: str, frame: CallFrame, tools: Tools) -> ToolCall | None:
    found = members(entry)
    if found is None:
        return None
    if set(found) == {"type", "function"}:  # OpenAI's own form
        return _object(found["function"], frame, tools)
    keys = (frame.arguments_key, *_ARGUMENTS)
    arguments = next((found[key] for key in keys if key in found), "{}")
    names = [found[key] for key in (frame.name_key, "name") if key in found]
    name, call_id = _text(names[0] if names else None), _text(found.get(frame.id_key or "id"))
    return make_call(tools, name, arguments, call_id if frame.id_key else None)


def _keyed(entry: str, _: CallFrame, tools: Tools) -> ToolCall | None:
    found = members(entry) or {}
    if len(found) != 1:
        return None
    name, arguments = next(iter(found.items()))
    return make_call(tools, name, arguments)


def _text(written: str | None) -> str | None:
    value = loaded(written) if written else None
    return value if isinstance(value, str) else None


@lru_cache
def _name_pattern(frame: CallFrame) -> re.Pattern[str]:
    """A name, with or without what the template writes around it."""
    parts = [flexible(part) for part in frame.before_arguments.split(ID)]
    behind = r"(?P<id>[^\s\[\]<>{}]*)".join(parts) if len(parts) == 2 else parts[0] + "(?P<id>)"
    before = f"(?:{flexible(frame.before_call)})?" if frame.before_call.strip() else ""
    return re.compile(rf"\s*{before}\s*(?P<name>[\w.-]+?)\s*(?:{behind}|{_MISTRAL})\s*")


def flexible(literal: str) -> str:
    """A regular expression of this text with any blanks where it has some, and at its ends."""
    words = literal.split()
    return r"\s*" + r"\s*".join(map(re.escape, words)) + r"\s*" if words else r"\s*"
