"""JSON to frozen dataclasses and back, by their type hints, refusing everything that does not fit.

Supported hints: str, int, float, bool, None unions, Literal, tuple[X, ...], dict[str, X], Any and dataclasses.
Unknown keys are errors: a misspelt key must never be a silent default.
"""

import dataclasses
import functools
import json
import math
import reprlib
import types
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")

MAX_DEPTH = 64
_INT64 = range(-(1 << 63), 1 << 63)
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60


class StrictJsonError(ValueError):
    """A value does not fit its type; the message starts with the path of the value."""


def loads(text: str) -> Any:
    """Parse JSON that any other reader would read alike.

    Refused: duplicate keys, NaN and infinite numbers, integers beyond 64 bits, half surrogate pairs, deep nesting.
    """
    try:
        value = json.loads(text, object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
    except RecursionError as error:
        raise StrictJsonError("the JSON is nested too deeply") from error
    except ValueError as error:
        raise StrictJsonError(str(error)) from error
    _require_portable(value, MAX_DEPTH)
    return value


def decode(kind: type[T], value: Any, where: str = "") -> T:
    """Build `kind` (a dataclass) from parsed JSON; raises StrictJsonError naming the offending path."""
    result: T = _decode(kind, value, where)
    return result


def encode(value: Any) -> Any:
    """Turn dataclasses and tuples into what `json.dumps` writes, fields in declared order."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: encode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    return value


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"key {twice!r} appears twice in one object")
    return result


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _require_portable(value: Any, depth: int) -> None:
    if not depth:
        raise StrictJsonError(f"the JSON is nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, dict):
        for name, item in value.items():
            _require_portable(name, depth)
            _require_portable(item, depth - 1)
    elif isinstance(value, list):
        for item in value:
            _require_portable(item, depth - 1)
    else:
        _require_portable_scalar(value)


def _require_portable_scalar(value: Any) -> None:
    if isinstance(value, int) and value not in _INT64:
        raise StrictJsonError(f"{_show(value)} does not fit 64 bits")
    if isinstance(value, float) and not math.isfinite(value):
        raise StrictJsonError("a number is too large for 64-bit floating point")
    if isinstance(value, str) and not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
        raise StrictJsonError(f"{_show(value)} holds half a surrogate pair, which is no text")


def _decode(kind: Any, value: Any, where: str) -> Any:
    if kind is Any:
        return value
    if dataclasses.is_dataclass(kind):
        return _decode_dataclass(kind, value, where)
    origin = get_origin(kind)
    if origin in _GENERIC:
        return _GENERIC[origin](kind, value, where)
    return _decode_scalar(kind, value, where)


def _decode_dataclass(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise StrictJsonError(f"{where or 'the document'}: expected an object, got {_show(value)}")
    hints, fields = _hints(kind), _fields(kind)
    unknown = [name for name in value if name not in fields]
    if unknown:
        raise StrictJsonError(f"{_join(where, unknown[0])}: unknown key; known keys are {', '.join(fields)}")
    missing = [name for name, field in fields.items() if name not in value and _required(field)]
    if missing:
        raise StrictJsonError(f"{_join(where, missing[0])}: missing")
    parts = {name: _decode(hints[name], item, _join(where, name)) for name, item in value.items()}
    try:
        return kind(**parts)
    except StrictJsonError:
        raise
    except ValueError as error:  # a rule that spans fields, from __post_init__
        raise StrictJsonError(f"{where or 'the document'}: {error}") from error


@functools.cache  # resolving the hints of every tensor of a large model again would dominate the parse
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


@functools.cache
def _fields(kind: Any) -> "dict[str, dataclasses.Field[Any]]":
    return {field.name: field for field in dataclasses.fields(kind)}


def _required(field: "dataclasses.Field[Any]") -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _decode_tuple(kind: Any, value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise StrictJsonError(f"{where}: expected a list, got {_show(value)}")
    item_kind = get_args(kind)[0]
    return tuple(_decode(item_kind, item, f"{where}[{i}]") for i, item in enumerate(value))


def _decode_dict(kind: Any, value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise StrictJsonError(f"{where}: expected an object, got {_show(value)}")
    wrong = [name for name in value if not isinstance(name, str)]
    if wrong:
        raise StrictJsonError(f"{where}: expected a string as key, got {_show(wrong[0])}")
    item_kind = get_args(kind)[1]
    return {name: _decode(item_kind, item, _join(where, name)) for name, item in value.items()}


def _decode_literal(kind: Any, value: Any, where: str) -> Any:
    accepted = get_args(kind)
    if not any(value == option and type(value) is type(option) for option in accepted):
        raise StrictJsonError(f"{where}: expected one of {', '.join(map(repr, accepted))}, got {_show(value)}")
    return value


def _decode_union(kind: Any, value: Any, where: str) -> Any:
    options = get_args(kind)
    if value is None and type(None) in options:
        return None
    solid = [option for option in options if option is not type(None)]
    for option in solid[:-1]:
        try:
            return _decode(option, value, where)
        except StrictJsonError:
            continue
    return _decode(solid[-1], value, where)


def _decode_scalar(kind: Any, value: Any, where: str) -> Any:
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise StrictJsonError(f"{where}: expected a finite number")
        return number
    if type(value) is not kind:
        raise StrictJsonError(f"{where}: expected {_NAMES.get(kind, kind)}, got {_show(value)}")
    return value


_GENERIC: dict[Any, Callable[[Any, Any, str], Any]] = {
    tuple: _decode_tuple,
    dict: _decode_dict,
    Literal: _decode_literal,
    Union: _decode_union,
    types.UnionType: _decode_union,
}
_NAMES: dict[Any, str] = {str: "a string", int: "an integer", float: "a number", bool: "true or false"}


def _join(where: str, name: Any) -> str:
    plain = isinstance(name, str) and name.isprintable() and len(name) <= 60
    shown = name if plain else _show(name)  # a key may hold control characters, and ends up on a terminal
    return f"{where}.{shown}" if where else str(shown)


def _show(value: Any) -> str:
    return _SHORT.repr(value)
