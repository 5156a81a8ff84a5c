"""The grammar of arguments that are not one JSON object: between tags, as in Python, and in Gemma's notation."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ...sampling.grammar import JSON_OPTIONS
from ...sampling.schema import of_property
from .arguments import resolve, types_of
from .format import CallFrame
from .tagged_calls import TYPE

_NOTHING = '""'
_ANY_TEXT = r"/(.|\n)*/"
_MOST_MORE = 16  # arguments that only an open schema allows
_DEEPEST = 12


class ArgumentRules:
    """Rules for one tool.

    Args:
        frame: of the format.
        literal: a text in Lark.
        rule: the name of the tool's rule; all others begin with it.
        schema: of the arguments, an object's.
    """

    def __init__(self, frame: CallFrame, literal: Callable[[str], str], rule: str, schema: Mapping[str, Any]) -> None:
        self._frame = frame
        self._literal = literal
        self._rule = rule
        self._schema = schema
        self._made: dict[str, str] = {}

    def rules(self, name: str) -> Iterator[str]:
        """The rule of the tool called `name`, and all that it needs."""
        make = {"tagged": self._tagged, "python": self._python, "marked": self._marked}[self._frame.shape]
        yield f"{self._rule}: {make(name)}"
        yield from (f"{made}: {body}" for made, body in self._made.items())

    def _tagged(self, name: str) -> str:
        frame = self._frame
        parts = [self._literal(name + frame.before_arguments)]
        for i, (key, required) in enumerate(self._properties()):
            argument = self._tagged_argument(f"{self._rule}_p{i}", key)
            parts.append(argument if required else f"({argument})?")
        if self._is_open:
            key = f"{self._literal(frame.before_key)} /[A-Za-z_][A-Za-z0-9_.-]*/ {self._literal(frame.before_value)}"
            parts.append(f"({key} {self._text(f'{self._rule}_more')}){{0,{_MOST_MORE}}}")
        return " ".join(parts)

    def _tagged_argument(self, rule: str, key: str) -> str:
        frame, kinds = self._frame, types_of(self._schema, key)
        is_text = not kinds or "string" in kinds
        before = TYPE.sub(f'string="{"true" if is_text else "false"}"', frame.before_value)
        opened = self._literal(frame.before_key + key + before)
        described = self._described(key)
        choices = _choices(described)
        if choices is not None:
            written = [one if isinstance(one, str) else json.dumps(one, ensure_ascii=False) for one in choices]
            ways = " | ".join(self._literal(one) or _NOTHING for one in written)
            return f"{opened} ({ways}) {self._literal(frame.after_value)}"
        if is_text:
            return f"{opened} {self._text(rule, described)}"
        self._made[rule] = self._json(key)
        return f"{opened} {rule} {self._literal(frame.after_value)}"

    def _text(self, rule: str, described: Any = None) -> str:
        """Text up to what closes a value."""
        end = self._frame.after_value.rstrip()
        pattern = _pattern(described)
        if pattern is not None:
            return f"{pattern} {self._literal(self._frame.after_value)}"
        self._made[f"{rule}[suffix={json.dumps(end)}]"] = _ANY_TEXT
        rest = self._frame.after_value[len(end) :]
        return f"{rule} {self._literal(rest)}"

    def _python(self, name: str) -> str:
        items = []
        for i, (key, required) in enumerate(self._properties()):
            rule = f"{self._rule}_p{i}"
            self._made[rule] = self._json(key)
            items.append((f"{self._literal(key + '=')} {rule}", required))
        return f"{self._literal(name + '(')} {self._sequence(self._rule, items, ', ')} {self._literal(')')}"

    def _marked(self, name: str) -> str:
        return f"{self._literal(name)} {self._marked_object(self._rule, self._schema, 0)}"

    def _marked_object(self, rule: str, schema: Mapping[str, Any], depth: int) -> str:
        items = []
        required = schema.get("required") or ()
        for i, (key, described) in enumerate((schema.get("properties") or {}).items()):
            value = self._marked_value(f"{rule}_p{i}", described, depth + 1)
            items.append((f"{self._literal(key + ':')} {value}", key in required))
        return f'"{{" {self._sequence(rule, items, ",")} "}}"'

    def _marked_value(self, rule: str, schema: Any, depth: int) -> str:
        if isinstance(schema, Mapping) and isinstance(schema.get("$ref"), str):
            name = f"{self._rule}_ref_" + re.sub(r"\W", "_", schema["$ref"])
            if name not in self._made:
                self._made[name] = '""'  # so that a schema that holds itself ends here
                self._made[name] = self._marked_value(f"{name}_v", resolve(schema["$ref"], self._schema), depth + 1)
            return name
        if not isinstance(schema, Mapping) or not schema or depth > _DEEPEST:
            return self._any_marked()
        choices = _choices(schema)
        branches = next((schema[key] for key in ("anyOf", "oneOf") if schema.get(key)), None)
        if choices is not None:
            made = [self._marked_literal(one) for one in choices]
        elif branches:
            made = [self._marked_value(f"{rule}_b{i}", branch, depth + 1) for i, branch in enumerate(branches)]
        else:
            kinds = schema.get("type")
            names = kinds if isinstance(kinds, list) else [kinds]
            made = [self._marked_kind(f"{rule}_k{i}", kind, schema, depth) for i, kind in enumerate(names)]
        self._made[rule] = " | ".join(made)
        return rule

    def _marked_kind(self, rule: str, kind: Any, schema: Mapping[str, Any], depth: int) -> str:
        quote = self._literal(self._frame.quote)
        if kind == "string":
            return f"{quote} {self._quoted()}"
        if kind == "array":
            item = self._marked_value(f"{rule}_i", schema.get("items"), depth + 1)
            return f'"[" ({item} ("," {item})*)? "]"'
        if kind == "object" and schema.get("properties"):
            return self._marked_object(rule, schema, depth)
        if kind in ("integer", "number", "boolean", "null"):
            limits = {key: value for key, value in schema.items() if key.lower().endswith(("imum", "multipleof"))}
            return f"%json {json.dumps({'type': kind, **limits})}"
        return self._any_marked()

    def _marked_literal(self, value: Any) -> str:
        if isinstance(value, str):
            return f"{self._literal(self._frame.quote + value + self._frame.quote)}"
        return self._literal(json.dumps(value))

    def _quoted(self) -> str:
        """Text and the mark that closes it."""
        quote = self._literal(self._frame.quote)
        if quote.startswith("<["):
            return f"/(.|\\n)*/ {quote}"
        name = f"{self._rule}_quoted"
        self._made[f"{name}[suffix={json.dumps(self._frame.quote)}]"] = _ANY_TEXT
        return name

    def _any_marked(self) -> str:
        """Any value."""
        name = f"{self._rule}_any"
        if name not in self._made:
            string = f"{self._literal(self._frame.quote)} {self._quoted()}"
            plain = '%json {"type": ["number", "boolean", "null"]}'
            self._made[f"{name}_key"] = "/[A-Za-z_][A-Za-z0-9_]*/"
            self._made[f"{name}_plain"] = plain
            members = f'"{{" ({name}_key ":" {name} ("," {name}_key ":" {name}){{0,{_MOST_MORE}}})? "}}"'
            items = f'"[" ({name} ("," {name})*)? "]"'
            self._made[name] = f"{string} | {name}_plain | {members} | {items}"
        return name

    def _sequence(self, rule: str, items: Sequence[tuple[str, bool]], separator: str) -> str:
        """Items in order, optional ones left out or not, with separators between those that are there."""
        more = ""
        for i, (item, required) in reversed([*enumerate(items)]):
            following = f"{rule}_m{i}"
            self._made[following] = f"{self._literal(separator)} {item} {more}"
            if not required:
                self._made[following] += f" | {more}" if more else ' | ""'
            first = f"{rule}_f{i}"
            after = f"{rule}_f{i + 1}" if i + 1 < len(items) else '""'
            self._made[first] = f"{item} {more}" + ("" if required else f" | {after}")
            more = following
        return f"{rule}_f0" if items else ""

    def _properties(self) -> list[tuple[str, bool]]:
        required = self._schema.get("required") or ()
        return [(key, key in required) for key in self._schema.get("properties") or {}]

    def _described(self, key: str) -> Any:
        described = (self._schema.get("properties") or {}).get(key)
        for _ in range(_DEEPEST):
            if not isinstance(described, Mapping) or not isinstance(described.get("$ref"), str):
                break
            described = resolve(described["$ref"], self._schema)
        return described

    @property
    def _is_open(self) -> bool:
        opened = self._schema.get("additionalProperties", False)
        return opened is True or isinstance(opened, Mapping)

    def _json(self, key: str) -> str:
        return f"%json {json.dumps(of_property(self._schema, key) | {'x-guidance': JSON_OPTIONS})}"


def _choices(schema: Any) -> list[Any] | None:
    if not isinstance(schema, Mapping):
        return None
    if "const" in schema:
        return [schema["const"]]
    return list(schema["enum"]) if isinstance(schema.get("enum"), list) and schema["enum"] else None


def _pattern(schema: Any) -> str | None:
    """A regular expression for text of this schema, or None if any text will do."""
    if not isinstance(schema, Mapping):
        return None
    pattern = schema.get("pattern")
    if isinstance(pattern, str):
        before = "" if pattern.startswith("^") else "(.|\\n)*"
        after = "" if pattern.endswith("$") and not pattern.endswith("\\$") else "(.|\\n)*"
        core = pattern.removeprefix("^")
        core = core if after else core.removesuffix("$")
        return "/" + before + f"({core})".replace("/", "\\/") + after + "/"
    least, most = schema.get("minLength"), schema.get("maxLength")
    if isinstance(least, int) or isinstance(most, int):
        return f"/[^<]{{{least or 0},{most if isinstance(most, int) else ''}}}/"
    return None
