"""The grammar of an answer that must be tool calls: the right names, and arguments of the tools' own schemas."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...errors import RequestError
from ...sampling.grammar import JSON_OPTIONS, StructuredOutput
from .tool_calls import MARKS, Family

if TYPE_CHECKING:
    from ...text.tokenizer import Tokenizer

_MOST_CALLS = 8


def tool_grammar(
    family: Family, tools: Sequence[Mapping[str, Any]], tokenizer: "Tokenizer", *, parallel: bool = True
) -> StructuredOutput:
    """Structured output that forces at least one call of one of `tools`, written as `family` writes it.

    Args:
        family: see `tool_calls`.
        tools: in OpenAI's format; give one of them to force that one.
        tokenizer: knows which marks are tokens of their own.
        parallel: allow several calls.

    Raises:
        RequestError: there is no tool, or one is malformed.
    """
    if not tools:
        raise RequestError("tool_choice asks for a tool call, and there are no tools.")
    schema = {"anyOf": [_schema(tool, family) for tool in tools], "x-guidance": JSON_OPTIONS}
    mark, end = _token(MARKS[family], tokenizer), _token("</tool_call>", tokenizer)
    more = f"({_MORE[family]}){{0,{_MOST_CALLS - 1}}}" if parallel else ""
    rules = _RULES[family].format(mark=mark, end=end, more=more)
    return StructuredOutput(lark=f"{rules}\ncall: %json {json.dumps(schema)}")


def _schema(tool: Mapping[str, Any], family: Family) -> dict[str, Any]:
    function = tool.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RequestError(f"tools: expected {{'type': 'function', 'function': {{'name': …}}}}, got {tool!r:.80}.")
    arguments = "parameters" if family == "llama" else "arguments"
    return {
        "type": "object",
        "properties": {
            "name": {"const": function["name"]},
            arguments: function.get("parameters") or {"type": "object"},
        },
        "required": ["name", arguments],
        "additionalProperties": False,
    }


def _token(mark: str, tokenizer: "Tokenizer") -> str:
    token_id = tokenizer.id_of(mark)
    return f"<[{token_id}]>" if token_id is not None and tokenizer.is_added(token_id) else json.dumps(mark)


_RULES: dict[Family, str] = {
    "hermes": 'start: one {more}\none: {mark} "\\n" call "\\n" {end}',
    "mistral": 'start: {mark} "[" call {more} "]"',
    "granite": 'start: {mark} "[" call {more} "]"',
    "llama": "start: call {more}",
}
_MORE: dict[Family, str] = {
    "hermes": '"\\n" one',
    "mistral": '", " call',
    "granite": '", " call',
    "llama": '"; " call',
}
