"""Anthropic's conversations, tools and choices in the form that a chat has for them."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..openai.errors import ApiError
from ..openai.parse import require_known
from ..openai.protocol import ChatFields
from .protocol import CountFields, MessageFields

Message = dict[str, Any]
Block = Mapping[str, Any]
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_EFFORTS = {"low": "low", "medium": "medium", "high": "high", "max": "xhigh", "xhigh": "xhigh"}


def chat_fields(fields: CountFields) -> ChatFields:
    """The same request as a chat.

    Raises:
        ApiError: 400: a block or tool of a kind that this server does not have; names where.
    """
    sampling: dict[str, Any] = {}
    if isinstance(fields, MessageFields):
        sampling = {
            "max_tokens": fields.max_tokens,
            "temperature": fields.temperature,
            "top_p": fields.top_p,
            "top_k": None if fields.top_k == -1 else fields.top_k,
            "stop": fields.stop_sequences,
            "stream": fields.stream,
        }
    choice = fields.tool_choice or {}
    return ChatFields(
        model=fields.model,
        messages=tuple(_messages(fields)),
        tools=tuple(_tool(tool, f"tools[{i}]") for i, tool in enumerate(fields.tools)) if fields.tools else None,
        tool_choice=_tool_choice(choice) if choice else None,
        parallel_tool_calls=False if choice.get("disable_parallel_tool_use") else None,
        response_format=_format(fields.output_config or {}),
        **_thinking(fields.thinking or {}, fields.output_config or {}),
        **sampling,
    )


def _messages(fields: CountFields) -> list[Message]:
    system = _text(fields.system, "system") if fields.system else ""
    found: list[Message] = [{"role": "system", "content": system}] if system else []
    for place, message in enumerate(fields.messages):
        where = f"messages[{place}]"
        require_known(message, {"role", "content"}, where)
        role = message.get("role")
        if role not in ("user", "assistant", "system"):
            raise _wrong(f"{where}.role", f"must be user, assistant or system, got {role!r:.60}")
        content = message.get("content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if not isinstance(blocks, list | tuple) or not blocks:
            raise _wrong(f"{where}.content", "must be a text or a list of blocks, not empty")
        found += _assistant(blocks, where) if role == "assistant" else _user(role, blocks, where)
    if not fields.messages:
        raise _wrong("messages", "at least one message is needed")
    return found


def _assistant(blocks: Sequence[Block], where: str) -> list[Message]:
    message: Message = {"role": "assistant", "content": ""}
    for place, block in enumerate(blocks):
        at = f"{where}.content[{place}]"
        _ASSISTANT[_kind(block, at, _ASSISTANT)](message, block, at)
    return [message | {"content": message["content"] or None} if message.get("tool_calls") else message]


def _user(role: str, blocks: Sequence[Block], where: str) -> list[Message]:
    """Results of tools are messages of their own, before what the user says."""
    results: list[Message] = []
    texts: list[str] = []
    for place, block in enumerate(blocks):
        at = f"{where}.content[{place}]"
        if _kind(block, at, ("text", "tool_result")) == "text":
            texts.append(_string(block, "text", at))
        else:
            results.append(_tool_result(block, at))
    return [*results, *([{"role": role, "content": "\n\n".join(texts)}] if texts else [])]


def _add_text(message: Message, block: Block, where: str) -> None:
    message["content"] += _string(block, "text", where)


def _add_thinking(message: Message, block: Block, where: str) -> None:
    message["reasoning_content"] = message.get("reasoning_content", "") + _string(block, "thinking", where)


def _add_tool_use(message: Message, block: Block, where: str) -> None:
    given = block.get("input")
    if not isinstance(given, Mapping):
        raise _wrong(f"{where}.input", "must be an object")
    function = {"name": _string(block, "name", where), "arguments": json.dumps(given, ensure_ascii=False)}
    call = {"id": _string(block, "id", where), "type": "function", "function": function}
    message.setdefault("tool_calls", []).append(call)


def _skip(_message: Message, _block: Block, _where: str) -> None:
    """Encrypted thoughts of another model mean nothing here."""


_ASSISTANT: Mapping[str, Callable[[Message, Block, str], None]] = {
    "text": _add_text,
    "thinking": _add_thinking,
    "redacted_thinking": _skip,
    "tool_use": _add_tool_use,
}


# What a block may have; a key that is null counts as left out.
_BLOCK_KEYS = {
    "text": {"text", "cache_control"},
    "thinking": {"thinking", "signature"},
    "redacted_thinking": {"data"},
    "tool_use": {"id", "name", "input", "cache_control", "caller"},
    "tool_result": {"tool_use_id", "content", "is_error", "cache_control"},
}


def _kind(block: Any, where: str, accepted: Iterable[str]) -> str:
    """The type of a block, one of `accepted`, which has no key that nobody reads."""
    kind = block.get("type") if isinstance(block, Mapping) else None
    if not isinstance(kind, str) or kind not in accepted:
        raise _wrong(where, f"type {kind!r:.60} is not supported here: {', '.join(accepted)}")
    require_known(block, _BLOCK_KEYS[kind] | {"type"}, where)
    return kind


def _tool_result(block: Block, where: str) -> Message:
    content = block.get("content")
    text = "" if content is None else _text(content, f"{where}.content")
    if block.get("is_error"):
        text = f"Error: {text}"
    return {"role": "tool", "tool_call_id": _string(block, "tool_use_id", where), "content": text}


_TOOL_KEYS = {"type", "name", "description", "input_schema", "strict", "cache_control"}


def _tool(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    if tool.get("type") not in (None, "custom"):
        raise _wrong(f"{where}.type", f"{tool['type']!r:.60} is not supported: tools of the client's own are")
    require_known(tool, _TOOL_KEYS, where)
    function: dict[str, Any] = {
        "name": _string(tool, "name", where),
        "parameters": tool.get("input_schema") or {"type": "object"},
    }
    if tool.get("description") is not None:
        function["description"] = tool["description"]
    if tool.get("strict") is not None:
        function["strict"] = bool(tool["strict"])
    return {"type": "function", "function": function}


def _tool_choice(choice: Mapping[str, Any]) -> str | dict[str, Any]:
    kind = choice.get("type")
    own = {"name"} if kind == "tool" else set()
    require_known(choice, {"type", "disable_parallel_tool_use"} | own, "tool_choice")
    if kind == "tool":
        return {"type": "function", "function": {"name": _string(choice, "name", "tool_choice")}}
    if not isinstance(kind, str) or kind not in _CHOICES:
        raise _wrong("tool_choice.type", f"must be auto, any, none or tool, got {kind!r:.60}")
    return _CHOICES[kind]


def _thinking(thinking: Mapping[str, Any], output: Mapping[str, Any]) -> dict[str, Any]:
    require_known(thinking, {"type", "budget_tokens", "display"}, "thinking")
    if thinking.get("display") not in (None, "summarized"):
        raise _wrong("thinking.display", "thoughts are shown as they are; leave it out")
    kind, effort = thinking.get("type"), output.get("effort")
    if kind not in (None, "enabled", "disabled", "adaptive"):
        raise _wrong("thinking.type", f"must be enabled, disabled or adaptive, got {kind!r:.60}")
    if effort is not None and effort not in _EFFORTS:
        raise _wrong("output_config.effort", f"must be one of {', '.join(_EFFORTS)}, got {effort!r:.60}")
    wanted: dict[str, Any] = {} if effort is None else {"reasoning_effort": _EFFORTS[effort]}
    if kind in ("enabled", "disabled"):
        wanted["enable_thinking"] = kind == "enabled"
    if thinking.get("budget_tokens") is not None:
        wanted["thinking_budget"] = thinking["budget_tokens"]
    return wanted


def _format(output: Mapping[str, Any]) -> dict[str, Any] | None:
    require_known(output, {"effort", "format"}, "output_config")
    wanted = output.get("format")
    require_known(wanted, {"type", "name", "schema"}, "output_config.format")
    if wanted is None:
        return None
    if not isinstance(wanted, Mapping) or wanted.get("type") != "json_schema":
        raise _wrong("output_config.format", "must be {'type': 'json_schema', 'schema': …}")
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": wanted.get("schema"), "strict": True}}


def _text(content: Any, where: str) -> str:
    """A text, or blocks of text one after the other."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise _wrong(where, "must be a text or a list of text blocks")
    for place, block in enumerate(content):
        _kind(block, f"{where}[{place}]", ("text",))
    return "\n\n".join(_string(block, "text", f"{where}[{i}]") for i, block in enumerate(content))


def _string(block: Block, key: str, where: str) -> str:
    value = block.get(key)
    if not isinstance(value, str):
        raise _wrong(f"{where}.{key}", f"must be a text, got {value!r:.60}")
    return value


def _wrong(where: str, words: str) -> ApiError:
    return ApiError(400, f"{where}: {words}.", param=where)
