"""Calls that are written as in Python: `[add(a=1, b="x"), now()]`, with or without the brackets."""

import ast
import json
from typing import Any

from .arguments import Tools, loaded, make_call, object_of
from .cursor import Cursor, Steps
from .format import CallFrame, ToolCall
from .json_calls import read_objects

_LONGEST_NAME = 200
_NAMES = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
_CODE_TOOLS = ("python", "code_interpreter", "ipython", "execute_python", "run_python")


def read_python(cursor: Cursor, frame: CallFrame, tools: Tools) -> Steps[list[ToolCall] | None]:
    """A list of calls, or one call; None if it is none, or not all are."""
    listed = bool((yield from cursor.take("[")))
    calls = []
    while True:
        begins = yield from cursor.peek()
        call = yield from (_json_call(cursor, frame, tools) if begins == "{" else _one_call(cursor, tools))
        if call is None:
            return None
        calls.append(call)
        behind = (yield from cursor.take(",", "]")) if listed else "]"
        if behind != ",":
            return calls if behind else None


def _json_call(cursor: Cursor, frame: CallFrame, tools: Tools) -> Steps[ToolCall | None]:
    """LFM2 writes JSON where the prompt asks for it."""
    calls = yield from read_objects(cursor, frame, tools)
    return calls[0] if calls else None


def read_code(cursor: Cursor, tools: Tools) -> Steps[list[ToolCall] | None]:
    """Everything up to the end: `tool.call(…)`, or code for a tool that runs code."""
    code, _ = yield from cursor.until(())
    call = _call_in(code, tools)
    if call is not None:
        return [call]
    runner = next((name for name in _CODE_TOOLS if name in tools), None)
    properties = tools[runner].get("properties") if runner else None
    if runner is None or not isinstance(properties, dict | None) or not code.strip():
        return None
    key = next(iter(properties), "code") if properties else "code"
    call = make_call(tools, runner, json.dumps({key: code.strip()}, ensure_ascii=False))
    return [call] if call else None


def _call_in(code: str, tools: Tools) -> ToolCall | None:
    """The call that is all of this code."""
    whole = Cursor()
    whole.push(code.strip())
    whole.ended = True
    call = _finished(_one_call(whole, tools))
    return call if not whole.pending.strip() else None


def _finished(steps: Steps[ToolCall | None]) -> ToolCall | None:
    try:
        next(steps)
    except StopIteration as end:
        found: ToolCall | None = end.value
        return found
    return None


def _one_call(cursor: Cursor, tools: Tools) -> Steps[ToolCall | None]:
    head, mark = yield from cursor.until(("(",), _LONGEST_NAME)
    name = head.strip()
    name = name if name in tools else name.removesuffix(".call")
    if not mark or name not in tools:
        return None
    cursor.unread("(")
    text = yield from cursor.brackets()
    return None if text is None else _call(name, f"f{text}", tools)


def _call(name: str, text: str, tools: Tools) -> ToolCall | None:
    """The call of a tool whose arguments are those of this Python call."""
    try:
        node = ast.parse(text, mode="eval").body
        arguments = _arguments(node, text, list(tools[name].get("properties") or ()))
    except (SyntaxError, ValueError, RecursionError, MemoryError, TypeError, KeyError, UnicodeError):
        return None
    return make_call(tools, name, arguments)


def _arguments(node: ast.expr, text: str, keys: list[str]) -> str | None:
    if not isinstance(node, ast.Call) or len(node.args) > len(keys):
        return None
    given = [*zip(keys, node.args, strict=False), *((word.arg, word.value) for word in node.keywords)]
    values = {key: _json(value, text) for key, value in given if key is not None}
    return object_of(values) if len(values) == len(given) else None  # else a key comes twice, or `**`


def _json(node: ast.expr, text: str) -> str:
    """JSON of a literal; ValueError for anything else."""
    if isinstance(node, ast.Dict):
        entries = zip(node.keys, node.values, strict=True)
        return object_of({_key(key): _json(value, text) for key, value in entries})
    if isinstance(node, ast.List | ast.Tuple):
        return "[" + ", ".join(_json(item, text) for item in node.elts) + "]"
    if isinstance(node, ast.Name):
        return json.dumps(_NAMES[node.id])
    written = ast.get_source_segment(text, node) or ""
    value = ast.literal_eval(node)
    if isinstance(value, int | float) and not isinstance(value, bool) and loaded(written) == value:
        return written  # as it is spelled
    return json.dumps(_text(value), ensure_ascii=False, allow_nan=False)


def _key(node: ast.expr | None) -> str:
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        raise ValueError("a key is no text")
    return str(_text(node.value))


def _text(value: Any) -> Any:
    """A string whose halves of surrogate pairs, as JSON escapes them, are joined."""
    if not isinstance(value, str):
        return value
    return value.encode("utf-16", "surrogatepass").decode("utf-16")
