"""A Python function as a tool: its name, its docstring, and its type hints as a JSON schema."""

import dataclasses
import enum
import inspect
import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from ..errors import OptionError

_PLAIN: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    Any: {},
    dict: {"type": "object"},
    list: {"type": "array"},
    tuple: {"type": "array"},
}
_LISTS = (list, tuple, set, frozenset, Sequence, Iterable)
_SECTION = re.compile(r"^\s*(Args|Arguments|Parameters):\s*$")
_ARGUMENT = re.compile(r"^\s+\*{0,2}(\w+)\s*(?:\([^)]*\))?:\s*(.+)$")
_END = re.compile(r"^\s*(Returns|Raises|Yields|Example|Examples|Note):\s*$")


def function_schema(function: Callable[..., Any]) -> dict[str, Any]:
    """The schema of a function in OpenAI's format, for `tools`.

    Types are those of the hints: str, int, float, bool, None, lists, dictionaries with text as keys, Literal, Enum,
    Optional and unions, TypedDict and dataclasses; a hint `Annotated[int, "…"]` describes an argument, and so does the
    docstring's section `Args:`. Arguments without a default are required.

    Raises:
        OptionError: an argument has no hint, or one that JSON has no type for; or takes any number of values.

    Example:
        >>> def weather(city: str, days: int = 1) -> str:
        ...     '''The weather of a city.'''
        >>> function_schema(weather)["function"]["parameters"]["required"]
        ['city']
    """
    name = getattr(function, "__name__", type(function).__name__)
    hinted: Any = function if inspect.isroutine(function) else type(function).__call__
    hints = get_type_hints(hinted, include_extras=True)
    summary, described = _documented(inspect.getdoc(function) or "")
    properties, required = {}, []
    for parameter in inspect.signature(function).parameters.values():
        where = f"{name}: argument {parameter.name!r}"
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise OptionError(f"{where} takes any number of values, which no schema can say. Name each argument.")
        if parameter.name not in hints:
            raise OptionError(f"{where} has no type hint. Give it one, such as {parameter.name}: str.")
        text = described.get(parameter.name)
        properties[parameter.name] = _schema(hints[parameter.name], where) | ({"description": text} if text else {})
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": summary, "parameters": parameters}}


def _schema(hint: Any, where: str) -> dict[str, Any]:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in _PLAIN:
        return dict(_PLAIN[hint])
    if origin is Annotated:
        text = next((part for part in arguments[1:] if isinstance(part, str)), None)
        return _schema(arguments[0], where) | ({"description": text} if text else {})
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema(one, where) for one in arguments]}
    if origin in (dict, Mapping) or origin is getattr(types, "MappingProxyType", None):
        return {"type": "object", "additionalProperties": _schema(arguments[1], where)}
    if isinstance(origin, type) and issubclass(origin, _LISTS):
        return {"type": "array", "items": _schema(arguments[0], where)}
    if isinstance(hint, type):
        return _class_schema(hint, where)
    raise OptionError(f"{where}: {hint!r:.60} is no type that JSON has.")


def _class_schema(hint: type, where: str) -> dict[str, Any]:
    if issubclass(hint, enum.Enum):
        return {"enum": [member.value for member in hint]}
    hints = get_type_hints(hint, include_extras=True)
    if is_typeddict(hint):
        keys: frozenset[str] = vars(hint)["__required_keys__"]
        required = sorted(keys, key=list(hints).index)
    elif dataclasses.is_dataclass(hint):
        required = [field.name for field in dataclasses.fields(hint) if _has_no_default(field)]
    else:
        raise OptionError(f"{where}: {hint.__name__} is no type that JSON has.")
    return {
        "type": "object",
        "properties": {key: _schema(one, where) for key, one in hints.items()},
        "required": required,
    }


def _has_no_default(field: "dataclasses.Field[Any]") -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _documented(text: str) -> tuple[str, dict[str, str]]:
    """The words before the section of arguments, and what that says of each."""
    summary: list[str] = []
    found: dict[str, str] = {}
    section = ""
    for line in text.splitlines():
        if _SECTION.match(line) or _END.match(line):
            section = "arguments" if _SECTION.match(line) else "other"
        elif section == "arguments" and (argument := _ARGUMENT.match(line)):
            found[argument[1]] = argument[2].strip()
        elif section == "arguments" and found and line.strip():
            last = next(reversed(found))
            found[last] += " " + line.strip()
        elif not section:
            summary.append(line)
    return "\n".join(summary).strip(), found
