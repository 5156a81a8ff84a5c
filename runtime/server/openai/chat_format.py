"""`response_format` and `tools` of a chat: what the answer must be, and how its tool calls are found."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...chat.formats.tool_calls import Family, ToolCallReader
from ...chat.formats.tool_grammar import tool_grammar
from ...sampling.grammar import StructuredOutput
from ...text.tokenizer import Tokenizer
from .errors import ApiError
from .parameters import structured_output
from .protocol import ChatFields

_NAME = re.compile(r"[\w.-]{1,128}")


@dataclass(frozen=True)
class ChatFormat:
    """What a request says about the form of its answer.

    Attributes:
        tools: what the template shows the model.
        structured: what the answer must be, or None.
        family: how the model writes tool calls; None where none are looked for.
        names: the tools that may be called.
    """

    tools: tuple[Mapping[str, Any], ...] = ()
    structured: StructuredOutput | None = None
    family: Family | None = None
    names: frozenset[str] = frozenset()

    def reader(self) -> ToolCallReader | None:
        """A reader for one choice's tool calls, or None."""
        return ToolCallReader(self.family, self.names) if self.family else None


def chat_format(fields: ChatFields, family: Family | None, tokenizer: Tokenizer) -> ChatFormat:
    """The format that a request asks for.

    Raises:
        ApiError, RequestError: it is malformed, contradictory, or more than this model can do.
    """
    wanted = _response_format(fields.response_format) or structured_output(fields.structured_outputs)
    if fields.response_format and fields.structured_outputs:
        raise ApiError(400, "Give response_format or structured_outputs, not both.", param="structured_outputs")
    choice = fields.tool_choice if fields.tool_choice is not None else "auto"
    if not fields.tools or choice == "none":
        _require_no_force(choice)
        return ChatFormat(structured=wanted)
    if wanted is not None:
        raise ApiError(400, "An answer cannot be JSON and a tool call: use tool_choice none.", param="response_format")
    names = _names(fields.tools)
    if family is None:
        raise ApiError(
            400, "This model's chat template has no tool calls of a kind known here. Leave out tools.", param="tools"
        )
    callable_tools = _callable(fields.tools, names, choice)
    forced = None
    if choice != "auto":
        parallel = fields.parallel_tool_calls is not False
        forced = tool_grammar(family, callable_tools, tokenizer, parallel=parallel)
    return ChatFormat(fields.tools, forced, family, frozenset(names))


def _response_format(wanted: dict[str, Any] | None) -> StructuredOutput | None:
    kind = wanted.get("type") if wanted else "text"
    if kind == "text":
        return None
    if kind == "json_object":
        return StructuredOutput(json_object=True)
    described = wanted.get("json_schema") if wanted else None
    if kind != "json_schema" or not isinstance(described, dict) or not isinstance(described.get("schema"), dict):
        raise ApiError(
            400,
            "response_format must be {'type': 'text'}, {'type': 'json_object'} or "
            "{'type': 'json_schema', 'json_schema': {'name': …, 'schema': {…}}}.",
            param="response_format",
        )
    return StructuredOutput(json_schema=described["schema"])


def _require_no_force(choice: Any) -> None:
    if choice not in ("none", "auto"):
        raise ApiError(400, "tool_choice asks for a call, and there are no tools.", param="tool_choice")


def _names(tools: Sequence[Mapping[str, Any]]) -> list[str]:
    names = []
    for place, tool in enumerate(tools):
        function = tool.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        parameters = function.get("parameters") if isinstance(function, dict) else None
        good = tool.get("type", "function") == "function" and isinstance(name, str) and _NAME.fullmatch(name)
        if not good or not isinstance(parameters, dict | None):
            raise ApiError(
                400,
                f"tools[{place}] must be {{'type': 'function', 'function': {{'name': …, 'parameters': {{…}}}}}}.",
                param=f"tools[{place}]",
            )
        names.append(str(name))
    if len(set(names)) < len(names):
        raise ApiError(400, "tools: two have the same name.", param="tools")
    return names


def _callable(tools: Sequence[Mapping[str, Any]], names: list[str], choice: Any) -> Sequence[Mapping[str, Any]]:
    if choice in ("auto", "required"):
        return tools
    function = choice.get("function") if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if name not in names:
        raise ApiError(
            400,
            "tool_choice must be none, auto, required or {'type': 'function', 'function': {'name': …}} with a tool's "
            "name.",
            param="tool_choice",
        )
    return [tools[names.index(name)]]
