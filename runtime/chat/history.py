"""Earlier answers as a template wants them: arguments as text or objects, thoughts where it reads them."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from .formats.format import CallFrame, ChatFormat
from .formats.writing import write_calls


def adapted(messages: Iterable[dict[str, Any]], chat: ChatFormat) -> list[dict[str, Any]]:
    """The messages, of which those with calls are changed where the template would fail on them.

    Args:
        messages: as `plain_messages` makes them, with arguments as objects.
        chat: what is known of the template.
    """
    return [_adapted(message, chat) if message.get("tool_calls") else message for message in messages]


def text_arguments(messages: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with the arguments of calls as JSON text."""
    return [_with_text(message) if message.get("tool_calls") else message for message in messages]


def _adapted(message: dict[str, Any], chat: ChatFormat) -> dict[str, Any]:
    if chat.needs_content and "content" not in message:
        message = {**message, "content": ""}
    if chat.calls and not chat.shows_calls and chat.calls.shape in ("json", "keyed", "named", "tagged", "python"):
        return _with_written_calls(message, chat.calls)
    if chat.calls and chat.calls.shape == "channels" and message.get("content") and message.get("thinking"):
        thoughts = f"{message['thinking']}\n\n{message['content']}"  # gpt-oss has one place for both, before a call
        message = {**message, "content": "", "thinking": thoughts, "reasoning_content": thoughts}
    if chat.calls and chat.calls.id_is_name:
        message = {**message, "tool_calls": [_with_id(call, i) for i, call in enumerate(_list(message))]}
    return _with_text(message) if chat.text_arguments else message


def _with_written_calls(message: dict[str, Any], frame: CallFrame) -> dict[str, Any]:
    """The message with its calls in the text, as the model wrote them: the template would leave them out."""
    functions = [call["function"] for call in _list(message) if isinstance(call.get("function"), Mapping)]
    calls = [(str(one.get("name")), _object(one.get("arguments"))) for one in functions]
    text = message.get("content") or ""
    if isinstance(text, list):
        text = "".join(str(part.get("text", "")) for part in text if isinstance(part, Mapping))
    kept = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**kept, "content": text + write_calls(frame, calls)} if calls else message


def _object(arguments: Any) -> Mapping[str, Any]:
    return arguments if isinstance(arguments, Mapping) else {}


def _with_text(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "tool_calls": [_text_call(call) for call in _list(message)]}


def _text_call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or isinstance(function.get("arguments"), str):
        return call
    arguments = json.dumps(function.get("arguments", {}), ensure_ascii=False)
    return {**call, "function": {**function, "arguments": arguments}}


def _with_id(call: Any, place: int) -> Any:
    """A call whose id names its tool, as the template expects; one that does already is left alone."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or str(call.get("id", "")).startswith("functions."):
        return call
    return {**call, "id": f"functions.{function.get('name')}:{place}"}


def _list(message: Mapping[str, Any]) -> list[Any]:
    calls = message["tool_calls"]
    return calls if isinstance(calls, list) else []
