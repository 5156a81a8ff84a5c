"""JSON schemas as grammars read them: an object has the keys that its schema names, unless the schema opens it.

Most schemas say nothing of further keys, and a model that may write any rambles to its limit. So
`additionalProperties` is false where neither it nor anything like it is given, as in llama.cpp's and xgrammar's
grammars. An object without any `properties` stays open: nothing else could be meant.
"""

from collections.abc import Iterator, Mapping
from typing import Any

_OPENING = frozenset(
    {"additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames", "minProperties"}
)
_LITERAL = frozenset({"const", "enum", "default", "examples", "x-guidance"})  # hold values, not schemas
_MAPPINGS = frozenset({"properties", "$defs", "definitions", "patternProperties", "dependentSchemas"})


def closed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with every object closed that does not say otherwise."""
    result: dict[str, Any] = _closed(schema, _merged(schema))
    return result


def _closed(schema: Any, open_ids: frozenset[int]) -> Any:
    if isinstance(schema, list):
        return [_closed(item, open_ids) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    made = {key: _member(key, value, open_ids) for key, value in schema.items()}
    if id(schema) not in open_ids and isinstance(made.get("properties"), dict) and not _OPENING & made.keys():
        made["additionalProperties"] = False
    return made


def _member(key: str, value: Any, open_ids: frozenset[int]) -> Any:
    if key in _LITERAL:
        return value
    if key in _MAPPINGS and isinstance(value, Mapping):
        return {name: _closed(item, open_ids) for name, item in value.items()}
    return _closed(value, open_ids)


def _merged(root: Mapping[str, Any]) -> frozenset[int]:
    """Schemas that others add keys to: parts of an `allOf`, and what stands beside one, a `$ref`, or alternatives."""
    found: set[int] = set()
    for schema in _schemas(root):
        parts = [part for part in schema.get("allOf") or () if isinstance(part, Mapping)]
        beside = "properties" in schema or "$ref" in schema
        choices = [part for name in ("anyOf", "oneOf") for part in schema.get(name) or () if isinstance(part, Mapping)]
        if len(parts) > 1 or (parts and (beside or choices)):
            _open([*parts, *choices, schema], root, found)
        elif "properties" in schema and ("$ref" in schema or choices):
            _open([*choices, schema, schema], root, found)
    return frozenset(found)


def _open(parts: list[Mapping[str, Any]], root: Mapping[str, Any], found: set[int]) -> None:
    for part in parts:
        while isinstance(part, Mapping) and id(part) not in found:
            found.add(id(part))
            part = _target(part.get("$ref"), root)


def _schemas(schema: Any) -> Iterator[Mapping[str, Any]]:
    waiting = [schema]
    while waiting:
        one = waiting.pop()
        if isinstance(one, list):
            waiting += one
        elif isinstance(one, Mapping):
            yield one
            waiting += [value for key, value in one.items() if key not in _LITERAL]


def _target(reference: Any, root: Mapping[str, Any]) -> Any:
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
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
