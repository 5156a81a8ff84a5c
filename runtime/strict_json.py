"""JSON to frozen dataclasses and back, by their type hints, refusing everything that does not fit.

Supported hints: str, int, float, bool, None unions, Literal, tuple[X, ...], dict[str, X], Any and dataclasses.
Unknown keys are errors: a misspelt key must never be a silent default.
"""

import dataclasses
import json
import math
import types
from collections.abc import Callable
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


class StrictJsonError(ValueError):
    """A value does not fit its type; the message starts with the path of the value."""


def loads(text: str) -> Any:
    """Parse JSON; refuses duplicate keys, NaN and Infinity, and nesting that Python cannot hold."""
    try:
        return json.loads(text, object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
    except RecursionError as error:
        raise StrictJsonError("the JSON is nested too deeply") from error
    except ValueError as error:
        raise StrictJsonError(str(error)) from error


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
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"key {twice!r} appears twice in one object")
    return result


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


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
    hints = get_type_hints(kind)
    fields = {f.name: f for f in dataclasses.fields(kind)}
    unknown = sorted(set(value) - set(fields))
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


def _join(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
