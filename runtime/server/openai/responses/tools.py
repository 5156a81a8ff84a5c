"""`tools`, `tool_choice` and `text.format` of a response in the form that a chat has for them, and back."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import ApiError
from ..parse import require_known

_TOOL_KEYS = {"type", "name", "description", "parameters", "strict"}
_FORMAT_KEYS = {"type", "name", "schema", "strict", "description"}


def chat_tools(tools: Sequence[Mapping[str, Any]] | None) -> tuple[dict[str, Any], ...] | None:
    """The functions as a chat names them.

    Raises:
        ApiError: 400: a tool is not a function, or malformed.
    """
    if tools is None:
        return None
    return tuple(_chat_tool(tool, f"tools[{place}]") for place, tool in enumerate(tools))


def shown_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]]:
    """The tools as the answer repeats them."""
    absent = {"description": None, "parameters": None, "strict": None}
    return [{"type": "function"} | absent | dict(tool) for tool in tools or ()]


def chat_choice(choice: Any) -> Any:
    """The choice of a tool as a chat has it.

    Raises:
        ApiError: 400: it is none of those.
    """
    if choice is None or choice in ("none", "auto", "required"):
        return choice
    if isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
        return dict(choice)
    name = choice.get("name") if isinstance(choice, Mapping) and choice.get("type") == "function" else None
    if not isinstance(name, str):
        raise ApiError(
            400,
            f"tool_choice must be none, auto, required or {{'type': 'function', 'name': …}}, got {choice!r:.80}.",
            param="tool_choice",
        )
    require_known(choice, {"type", "name"}, "tool_choice")
    return {"type": "function", "function": {"name": name}}


def chat_format(wanted: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """`text.format` as a chat's `response_format`.

    Raises:
        ApiError: 400: it is none of text, json_object and json_schema, or malformed.
    """
    kind = "text" if wanted is None else wanted.get("type")
    require_known(wanted, _FORMAT_KEYS if kind == "json_schema" else {"type"}, "text.format")
    if wanted is None or kind == "text":
        return None
    if kind == "json_object":
        return {"type": "json_object"}
    if kind != "json_schema" or not isinstance(wanted.get("schema"), Mapping):
        raise ApiError(
            400,
            "text.format must be {'type': 'text'}, {'type': 'json_object'} or "
            f"{{'type': 'json_schema', 'name': …, 'schema': {{…}}}}, got {wanted!r:.80}.",
            param="text.format",
        )
    return {"type": "json_schema", "json_schema": {"schema": dict(wanted["schema"])}}


def _chat_tool(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    kind = tool.get("type")
    if kind != "function":
        raise ApiError(400, f"{where}: type {kind!r:.60} is not supported: tools here are functions.", param=where)
    require_known(tool, _TOOL_KEYS, where)
    known_keys = ("name", "description", "parameters", "strict")
    function = {key: tool[key] for key in known_keys if tool.get(key) is not None}
    return {"type": "function", "function": function}
