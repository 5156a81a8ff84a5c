"""`response_format`, `tools` and `tool_choice` of a chat: what the answer must be, and which calls it may make."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...chat.answer_plan import ToolChoice, required
from ...sampling.grammar import StructuredOutput
from .errors import ApiError
from .parameters import structured_output
from .parse import require_known
from .protocol import ChatFields

_SCHEMA_KEYS = {"name", "schema", "strict", "description"}
_ALLOWED = ("mode", "tools")
_NAME = re.compile(r"[\w.-]{1,128}")
_CHOICES = (
    "tool_choice must be none, auto, required, {'type': 'function', 'function': {'name': …}} or "
    "{'type': 'allowed_tools', 'allowed_tools': {'mode': 'auto' or 'required', 'tools': […]}} with names of tools."
)


@dataclass(frozen=True)
class AnswerForm:
    """What a request says about the form of its answer.

    Attributes:
        tools: functions that the model may call.
        choice: which of them, and whether it must.
        structured: what an answer that is no call must be, or None.
    """

    tools: tuple[Mapping[str, Any], ...] = ()
    choice: ToolChoice = field(default_factory=ToolChoice)
    structured: StructuredOutput | None = None


def answer_form(fields: ChatFields) -> AnswerForm:
    """The form that a request asks for.

    Raises:
        ApiError, RequestError: it is malformed or contradictory.
    """
    wanted = _response_format(fields.response_format) or structured_output(fields.structured_outputs)
    if fields.response_format and fields.structured_outputs:
        raise ApiError(400, "Give response_format or structured_outputs, not both.", param="structured_outputs")
    choice = fields.tool_choice if fields.tool_choice is not None else "auto"
    if not fields.tools:
        _require_no_force(choice)
        return AnswerForm(structured=wanted)
    names = _names(fields.tools)
    made = _choice(choice, names, parallel=fields.parallel_tool_calls is not False)
    return AnswerForm(fields.tools, made, wanted)


def _response_format(wanted: dict[str, Any] | None) -> StructuredOutput | None:
    require_known(wanted, {"type", "json_schema"}, "response_format")
    require_known((wanted or {}).get("json_schema"), _SCHEMA_KEYS, "response_format.json_schema")
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


def _choice(choice: Any, names: Sequence[str], *, parallel: bool) -> ToolChoice:
    if choice in ("none", "auto", "required"):
        return ToolChoice(mode=choice, parallel=parallel)
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        nested = "allowed_tools" in choice
        require_known(choice, {"type", "allowed_tools"} if nested else {"type", *_ALLOWED}, "tool_choice")
        return _allowed(choice["allowed_tools"] if nested else choice, names, parallel)
    name = _function_name(choice)
    if name is None or name not in names:
        raise ApiError(400, _CHOICES, param="tool_choice")
    return required([name])


def _allowed(described: Any, names: Sequence[str], parallel: bool) -> ToolChoice:
    require_known(described, {"type", *_ALLOWED}, "tool_choice.allowed_tools")
    mode = described.get("mode", "auto") if isinstance(described, dict) else None
    tools = described.get("tools") if isinstance(described, dict) else None
    allowed = tuple(_function_name(tool) or "" for tool in tools) if isinstance(tools, list) else ()
    if mode not in ("auto", "required") or not allowed or not set(allowed) <= set(names):
        raise ApiError(400, _CHOICES, param="tool_choice")
    return ToolChoice(mode=mode, allowed=allowed, parallel=parallel)


def _function_name(tool: Any) -> str | None:
    """The name in OpenAI's two forms: within `function`, or beside the type."""
    if not isinstance(tool, dict) or tool.get("type", "function") != "function":
        return None
    require_known(tool, {"type", "function", "name"}, "tool_choice")
    function = tool.get("function", tool)
    require_known(function, {"type", "name"}, "tool_choice.function")
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else None
