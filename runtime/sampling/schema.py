"""JSON schemas as grammars read them: an object has the keys that its schema names, unless the schema opens it.

Most schemas say nothing of further keys, and a model that may write any rambles to its limit. So
`additionalProperties` is false where neither it nor anything like it is given, as in llama.cpp's and xgrammar's
grammars; names that fit a pattern of `patternProperties` are named. Parts of an intersection, each of which names some
of the keys, are closed together. An object that names no keys stays open: nothing else could be meant.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from ..errors import RequestError

_OPENING = frozenset({"additionalProperties", "unevaluatedProperties", "propertyNames"})
_HEAD = "structured output: json_schema"
_NAMING = ("properties", "patternProperties")
_LITERAL = frozenset({"const", "enum", "default", "examples", "x-guidance"})  # hold values, not schemas
_NEUTRAL: Mapping[str, Any] = MappingProxyType(
    {"uniqueItems": False, "minProperties": 0, "minContains": 0, "dependentRequired": {}, "dependentSchemas": {}}
)  # values that ask for nothing, of keywords that may not be enforced otherwise
_MAPPINGS = frozenset({"properties", "$defs", "definitions", "patternProperties", "dependentSchemas"})


def closed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with every object closed that does not say otherwise."""
    _require_definite(schema)
    result: dict[str, Any] = _closed(schema, _merged(schema))
    return result


def _require_definite(root: Mapping[str, Any]) -> None:
    """Refuse what the compiler of grammars would read wrongly or never end at.

    Raises:
        RequestError: names the key.
    """
    for schema in _schemas(root):
        for key in ("exclusiveMinimum", "exclusiveMaximum"):
            if isinstance(schema.get(key), bool):
                raise RequestError(
                    f"{_HEAD}: {key} must be a number, as since draft 6, not true or false as in draft 4."
                )
        seen: set[int] = set()
        target: Any = schema
        while isinstance(target, Mapping) and "$ref" in target:
            if id(target) in seen:
                raise RequestError(f"{_HEAD}: $ref {target['$ref']!r:.60} refers to itself.")
            seen.add(id(target))
            target = _target(target["$ref"], root)


def _closed(schema: Any, open_ids: Mapping[int, list[Mapping[str, Any]]]) -> Any:
    if isinstance(schema, list):
        return [_closed(item, open_ids) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    made = {key: _member(key, value, open_ids) for key, value in schema.items() if not _asks_nothing(key, value)}
    names = [name for name in _NAMING if isinstance(made.get(name), dict)]
    if id(schema) not in open_ids:
        if names and not _OPENING & made.keys():
            made["additionalProperties"] = False
    elif (parts := open_ids[id(schema)]) and not any(_OPENING & part.keys() for part in parts):
        for name in _NAMING:  # what the parts say of a key holds beside this
            every = {key: True for part in parts for key in part.get(name) or ()}
            if every or name in made:
                made[name] = every | made.get(name, {})
        made["additionalProperties"] = False
    return made


def _asks_nothing(key: str, value: Any) -> bool:
    neutral = _NEUTRAL.get(key)
    return neutral is not None and type(value) is type(neutral) and bool(value == neutral)


def _member(key: str, value: Any, open_ids: Mapping[int, list[Mapping[str, Any]]]) -> Any:
    if key in _LITERAL:
        return value
    if key in _MAPPINGS and isinstance(value, Mapping):
        return {name: _closed(item, open_ids) for name, item in value.items()}
    return _closed(value, open_ids)


def _merged(root: Mapping[str, Any]) -> dict[int, list[Mapping[str, Any]]]:
    """Schemas that others add keys to: parts of an `allOf`, and what stands beside one, a `$ref`, or alternatives.

    The outermost of them has all that together name the keys; the others have none.
    """
    found: dict[int, list[Mapping[str, Any]]] = {}
    inner: set[int] = set()
    for schema in _schemas(root):
        parts = [part for part in schema.get("allOf") or () if isinstance(part, Mapping)]
        beside = "properties" in schema or "$ref" in schema
        choices = [part for name in ("anyOf", "oneOf") for part in schema.get(name) or () if isinstance(part, Mapping)]
        if len(parts) > 1 or (parts and (beside or choices)):
            _open(schema, [*parts, *choices], root, found, inner)
        elif "properties" in schema and ("$ref" in schema or choices):
            _open(schema, choices, root, found, inner)
    return {one: [] if one in inner else parts for one, parts in found.items()}


def _open(
    outer: Mapping[str, Any],
    parts: list[Any],
    root: Mapping[str, Any],
    found: dict[int, list[Mapping[str, Any]]],
    inner: set[int],
) -> None:
    """Open the parts and what they refer to; what has parts of its own is opened by itself."""
    together: dict[int, Mapping[str, Any]] = {id(outer): outer}
    waiting = [*parts, _target(outer.get("$ref"), root)]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Mapping) and id(part) not in together:
            together[id(part)] = part
            waiting += [_target(part.get("$ref"), root)]
            waiting += [one for name in ("allOf", "anyOf", "oneOf") for one in part.get(name) or ()]
    inner |= together.keys() - {id(outer)}
    for one in together:
        found.setdefault(one, [])
    found[id(outer)] = [*together.values()]


def _schemas(schema: Any) -> Iterator[Mapping[str, Any]]:
    waiting = [schema]
    while waiting:
        one = waiting.pop()
        if isinstance(one, list):
            waiting += one
        elif isinstance(one, Mapping):
            yield one
            for key, value in one.items():
                if key in _MAPPINGS and isinstance(value, Mapping):
                    waiting += value.values()
                elif key not in _LITERAL:
                    waiting.append(value)


def _target(reference: Any, root: Mapping[str, Any]) -> Any:
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    if not reference.startswith("#/"):
        return (
            root if reference == "#" else next((s for s in _schemas(root) if s.get("$anchor") == reference[1:]), None)
        )
    found: Any = root
    for part in reference.split("/")[1:]:
        found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
    return found


def of_property(root: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The schema of one property, as a document of its own in which references of the whole still hold."""
    moved = _moved(root)
    return {"$ref": f"#/$defs/root/properties/{key.replace('~', '~0').replace('/', '~1')}", "$defs": {"root": moved}}


def _moved(schema: Any) -> Any:
    """The schema, whose references are those from a document that holds it under `$defs/root`."""
    if isinstance(schema, list):
        return [_moved(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    made = {key: value if key in _LITERAL else _moved(value) for key, value in schema.items()}
    reference = made.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        made["$ref"] = "#/$defs/root" + reference[1:]
    return made
