"""The messages and tools of a chat, checked and turned into the plain data that a template wants."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeGuard

from ..errors import RequestError
from .formats.format import CallFrame, ChatFormat
from .formats.writing import JSON, write_calls

_REASONING = ("reasoning_content", "thinking", "reasoning")
_TEXTS = frozenset(("role", "content", "name", "tool_call_id"))
_ALL_TEXT = frozenset((str,))


def plain_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages as transformers prepares them: copies, unless nothing changes.

    Keys whose value is None are dropped; reasoning is copied under the names that templates read; the arguments of
    tool calls become objects where they are JSON text, as in OpenAI's format.

    Args:
        messages: each with a `role`, and `content`: text, a list of parts of type text, or None beside tool calls.

    Raises:
        RequestError: names the message and what is wrong with it.
    """
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence) or not messages:
        raise RequestError(
            "messages must be a list of at least one message, such as {'role': 'user', 'content': 'Hi'}."
        )
    return [one if _is_plain(one) else _message(one, f"messages[{i}]") for i, one in enumerate(messages)]


def plain_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Copies of the tools, which are JSON objects as in OpenAI's format; None if there are none.

    Raises:
        RequestError: something is not plain data.
    """
    if not tools:
        return None
    if not isinstance(tools, Sequence) or not all(isinstance(tool, Mapping) for tool in tools):
        raise RequestError("tools must be a list of objects, such as {'type': 'function', 'function': {'name': …}}.")
    plain: list[dict[str, Any]] = plain_data(tools, "tools")
    return plain


def adapted(messages: Iterable[dict[str, Any]], chat: ChatFormat) -> list[dict[str, Any]]:
    """The messages, of which those with calls are changed where the template would fail on them.

    Args:
        messages: as `plain_messages` makes them, with arguments as objects.
        chat: what is known of the template.
    """
    return [_adapted(message, chat) if message.get("tool_calls") else message for message in messages]


def with_text_arguments(messages: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with the arguments of calls as JSON text."""
    return [_with_text(message) if message.get("tool_calls") else message for message in messages]


def plain_data(value: Any, where: str) -> Any:
    """A copy of JSON-like data without any subclass or foreign object; RequestError names what is not."""
    try:
        return _copied(value)
    except TypeError:
        return _converted(value, where)


def _copied(value: Any) -> Any:
    """The usual case, without the names of places; TypeError where something is of another type."""
    kind = type(value)
    if kind is str or value is None or kind is bool or kind is int or kind is float:
        return value
    if kind is dict:
        if not _ALL_TEXT.issuperset(map(type, value)):
            raise TypeError
        return {key: item if type(item) is str else _copied(item) for key, item in value.items()}
    if kind is list or kind is tuple:
        return [_copied(item) for item in value]
    raise TypeError


def _converted(value: Any, where: str) -> Any:
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, str):  # an enum or other subclass, whose methods a template must not reach
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, Mapping):
        return {_key(key, where): _converted(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_converted(item, f"{where}[{i}]") for i, item in enumerate(value)]
    raise RequestError(f"{where}: a {type(value).__name__} is not data that JSON can hold.")


def _key(key: Any, where: str) -> str:
    if not isinstance(key, str):
        raise RequestError(f"{where}: the key {key!r} is not a string.")
    return str.__str__(key)


def _is_plain(message: Any) -> TypeGuard[dict[str, Any]]:
    """Whether the message has texts alone, as most have, and nothing to prepare."""
    return (
        type(message) is dict
        and "content" in message
        and _TEXTS.issuperset(message)
        and _ALL_TEXT.issuperset(map(type, message.values()))
        and bool(message.get("role"))
    )


def _message(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise RequestError(f"{where} must be an object with role and content, got {message!r:.60}.")
    plain = _plain(message, where)
    if None in plain.values():
        plain = {key: value for key, value in plain.items() if value is not None}
    role = plain.get("role")
    if not isinstance(role, str) or not role:
        raise RequestError(
            f"{where}.role must be a word such as 'system', 'user', 'assistant' or 'tool', got {role!r}."
        )
    if "content" in plain:
        plain["content"] = _content(plain["content"], f"{where}.content")
    elif not plain.get("tool_calls"):
        raise RequestError(f"{where} has neither content nor tool_calls.")
    _parse_arguments(plain.get("tool_calls"))
    return _with_reasoning(plain)


def _plain(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    try:
        plain: dict[str, Any] = plain_data(message, where)
    except RecursionError as error:
        raise RequestError(f"{where} is nested too deeply, or contains itself.") from error
    return plain


def _content(content: Any, where: str) -> Any:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError(f"{where} must be text or a list of parts, got {content!r:.60}.")
    for i, part in enumerate(content):
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise RequestError(
                f"{where}[{i}] must be {{'type': 'text', 'text': …}}: this model reads text only, got {part!r:.80}."
            )
    return content


def _parse_arguments(calls: Any) -> None:
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict) and isinstance(function.get("arguments"), str):
            try:
                arguments = json.loads(function["arguments"])
            except ValueError:
                continue  # the model wrote something else: show it as it is
            function["arguments"] = arguments if isinstance(arguments, dict) else function["arguments"]


def _with_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    for key in _REASONING:
        if (words := message.get(key)) is not None:
            return {"thinking": words, **message, "reasoning_content": words}
    return message


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
    arguments = JSON.encode(function.get("arguments", {}))
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
