"""Arguments of calls: from what a model wrote to the text of a JSON object, each number spelled as it was."""

import ast
import json
import re
import secrets
import string
from collections.abc import Mapping
from typing import Any

from .format import ToolCall

Tools = Mapping[str, Mapping[str, Any]]  # the schema of the arguments, by the tool's name
_ID_LETTERS = string.ascii_letters + string.digits
_ID_LENGTH = 9  # Mistral's templates accept no other
_BLANKS = re.compile(r"[ \t\r\n]*")
_WORDS = {"True": "true", "False": "false", "None": "null"}
_MOST_REFS = 16


def new_id() -> str:
    """An id for a call, which every template accepts."""
    return "".join(secrets.choice(_ID_LETTERS) for _ in range(_ID_LENGTH))


def make_call(tools: Tools, name: Any, arguments: str | None, call_id: Any = None) -> ToolCall | None:
    """The call, or None if there is no such tool or the arguments are no JSON object."""
    if not isinstance(name, str) or name not in tools or arguments is None:
        return None
    text = object_text(arguments)
    return None if text is None else ToolCall(call_id if isinstance(call_id, str) and call_id else new_id(), name, text)


def object_text(text: str) -> str | None:
    """The text of a JSON object, valid and without a key that comes twice; also of one that stands in a JSON string."""
    value = loaded(text)
    if isinstance(value, str):
        text, value = value, loaded(value)
    if value is None and text.strip() in ("null", ""):
        return "{}"
    if not isinstance(value, dict):
        return None
    try:
        json.loads(text)
    except (ValueError, RecursionError):  # line breaks in strings
        return json.dumps(value, ensure_ascii=False)
    return text.strip()


def loaded(text: str) -> Any:
    """The JSON value, read with line breaks in strings; None if it is none, or has a key twice."""
    try:
        return _decoder.decode(text)
    except (ValueError, RecursionError):
        return None


def members(text: str) -> dict[str, str] | None:
    """The members of a JSON object, each value as it is written; None if it is no object, or has a key twice."""
    found: dict[str, str] = {}
    try:
        place = _skip(text, _skip(text, 0) + 1)
        while text[place] != "}":
            key, place = _decoder.raw_decode(text, place)
            place = _skip(text, _skip(text, place) + 1)
            _, end = _decoder.raw_decode(text, place)
            if not isinstance(key, str) or key in found:
                return None
            found[key] = text[place:end]
            place = _skip(text, end)
            place = _skip(text, place + 1) if text[place] == "," else place
    except (ValueError, IndexError, RecursionError):
        return None
    return found


def elements(text: str) -> list[str] | None:
    """The items of a JSON list as they are written, or the one value that is no list; None if it is no JSON."""
    found: list[str] = []
    try:
        if text[_skip(text, 0)] != "[":
            return [text] if loaded(text) is not None else None
        place = _skip(text, _skip(text, 0) + 1)
        while text[place] != "]":
            _, end = _decoder.raw_decode(text, place)
            found.append(text[place:end])
            place = _skip(text, end)
            place = _skip(text, place + 1) if text[place] == "," else place
    except (ValueError, IndexError, RecursionError):
        return None
    return found


def object_of(members: Mapping[str, str]) -> str:
    """The text of a JSON object with these values."""
    return "{" + ", ".join(f"{json.dumps(key, ensure_ascii=False)}: {value}" for key, value in members.items()) + "}"


def value_text(text: str, schema: Mapping[str, Any], key: str) -> str:
    """JSON of a value that stands without quotes, by the type that the schema gives this argument."""
    kinds = types_of(schema, key)
    if kinds != {"string"}:
        plain = text.strip()
        for written in (_WORDS.get(plain, plain), _python_text(plain)):
            value = loaded(written) if written is not None else None
            if (value is not None or written == "null") and (not kinds or kind_of(value) & kinds):
                return written or ""
    return json.dumps(text, ensure_ascii=False)


def types_of(schema: Mapping[str, Any], key: str) -> set[str]:
    """The types that an argument may have; empty if the schema does not say."""
    properties = schema.get("properties")
    described = properties.get(key) if isinstance(properties, Mapping) else None
    return _types(described, schema, _MOST_REFS) if described is not None else set()


def kind_of(value: Any) -> set[str]:
    """The JSON types of a value."""
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, int):
        return {"integer", "number"}
    names = {float: "number", str: "string", dict: "object", list: "array", type(None): "null"}
    return {names[type(value)]}


def _types(described: Any, root: Mapping[str, Any], depth: int) -> set[str]:
    if not isinstance(described, Mapping) or not depth:
        return set()
    if isinstance(described.get("$ref"), str):
        return _types(resolve(described["$ref"], root), root, depth - 1)
    kind = described.get("type")
    if isinstance(kind, str):
        return {kind}
    if isinstance(kind, list):
        return set(filter(lambda one: isinstance(one, str), kind))
    if "const" in described:
        return kind_of(described["const"])
    if isinstance(described.get("enum"), list):
        return set().union(*(kind_of(one) for one in described["enum"]))
    branches = [b for name in ("anyOf", "oneOf", "allOf") for b in _list(described.get(name))]
    found = [_types(branch, root, depth - 1) for branch in branches]
    return set().union(*found) if found and all(found) else set()


def resolve(reference: str, root: Mapping[str, Any]) -> Any:
    """What `#/…` points to in a schema, or None."""
    found: Any = root
    for part in reference.removeprefix("#").split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and part.isdecimal() and int(part) < len(found):
            found = found[int(part)]
        elif isinstance(found, Mapping):
            found = found.get(part)
        else:
            return None
    return found


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _python_text(text: str) -> str | None:
    """JSON of a Python literal, as templates write lists that they turn into strings."""
    if text[:1] not in ("[", "{", "("):
        return None
    try:
        value = ast.literal_eval(text)
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return None


def _skip(text: str, place: int) -> int:
    found = _BLANKS.match(text, place)
    return found.end() if found else place


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a key comes twice")
    return made


_decoder = json.JSONDecoder(parse_constant=_no_constant, strict=False, object_pairs_hook=_unique)
