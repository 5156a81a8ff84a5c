"""`input` of a response as the messages of a chat: text, messages, function calls and their outputs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import ApiError
from ..parse import require_known

Message = dict[str, Any]
_ROLES = ("user", "assistant", "system", "developer")
_TEXT_PARTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
_PART_KEYS = {"type", "text", "refusal", "annotations", "logprobs"}
_KEYS = {
    "message": {"type", "role", "content", "id", "status", "phase"},
    "reasoning": {"type", "id", "summary", "content", "encrypted_content", "status"},
    "function_call": {"type", "call_id", "name", "arguments", "id", "status"},
    "function_call_output": {"type", "call_id", "output", "id", "status"},
}


def messages_of(given: str | Sequence[Mapping[str, Any]], before: Sequence[Message]) -> list[Message]:
    """The messages that `input` adds to a conversation.

    A call follows what the assistant said in the same message, as the answer had it; thoughts (`reasoning`) go before
    it. Those that are encrypted are of other models, and left out.

    Args:
        given: of the request.
        before: the conversation so far, whose calls outputs may belong to.

    Raises:
        ApiError: 400: an item is of another type, malformed, or the output of a call that was not made.
    """
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    reader = _Reader(before)
    for place, item in enumerate(given):
        reader.add(item, f"input[{place}]")
    return reader.messages


class _Reader:
    """Items become messages, in order."""

    def __init__(self, before: Sequence[Message]) -> None:
        self.messages: list[Message] = []
        self._thoughts = ""  # of the assistant's message that follows
        self._names = {call["id"]: call["function"]["name"] for m in before for call in m.get("tool_calls", ())}

    def add(self, item: Mapping[str, Any], where: str) -> None:
        kind = "message" if item.get("type") is None else item["type"]
        if not isinstance(kind, str) or kind not in _READERS:
            raise _wrong(where, f"type {kind!r:.60} is not supported; items are {', '.join(_READERS)}")
        require_known(item, _KEYS[kind], where)
        _READERS[kind](self, item, where)

    def message(self, item: Mapping[str, Any], where: str) -> None:
        role = item.get("role")
        if role not in _ROLES:
            raise _wrong(f"{where}.role", f"must be one of {', '.join(_ROLES)}, got {role!r:.60}")
        message = {"role": role, "content": _text(item.get("content"), f"{where}.content")}
        self.messages.append(self._with_thoughts(message) if role == "assistant" else message)

    def reasoning(self, item: Mapping[str, Any], where: str) -> None:
        parts = item.get("content") or item.get("summary") or ()
        if not isinstance(parts, list | tuple):
            raise _wrong(where, "content and summary must be lists of parts")
        for place, part in enumerate(parts):
            require_known(part, _PART_KEYS, f"{where}.content[{place}]")
        texts = [part.get("text") for part in parts if isinstance(part, dict)]
        self._thoughts += "\n".join(text for text in texts if isinstance(text, str))

    def _with_thoughts(self, message: Message) -> Message:
        thoughts, self._thoughts = self._thoughts, ""
        return message | {"reasoning_content": thoughts} if thoughts else message

    def call(self, item: Mapping[str, Any], where: str) -> None:
        call_id, name, arguments = (_string(item, key, where) for key in ("call_id", "name", "arguments"))
        self._names[call_id] = name
        call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        if not self.messages or self.messages[-1]["role"] != "assistant" or self._thoughts:
            self.messages.append(self._with_thoughts({"role": "assistant", "content": None}))
        self.messages[-1].setdefault("tool_calls", []).append(call)

    def output(self, item: Mapping[str, Any], where: str) -> None:
        call_id = _string(item, "call_id", where)
        if call_id not in self._names:
            raise _wrong(f"{where}.call_id", f"no function call before it has the id {call_id!r:.60}")
        content = _text(item.get("output"), f"{where}.output")
        self.messages.append(
            {"role": "tool", "tool_call_id": call_id, "name": self._names[call_id], "content": content}
        )


_READERS: dict[str, Callable[[_Reader, Mapping[str, Any], str], None]] = {
    "message": _Reader.message,
    "reasoning": _Reader.reasoning,
    "function_call": _Reader.call,
    "function_call_output": _Reader.output,
}


def _text(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _wrong(where, f"must be text or a list of parts, got {content!r:.60}")
    return "".join(_part(part, f"{where}[{place}]") for place, part in enumerate(content))


def _part(part: Any, where: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    text = part.get(_TEXT_PARTS[kind]) if isinstance(kind, str) and kind in _TEXT_PARTS else None
    if not isinstance(text, str):
        raise _wrong(
            where, f"must be {{'type': 'input_text', 'text': …}}: models here read text only, got {part!r:.80}"
        )
    require_known(part, _PART_KEYS, where)
    return text


def _string(item: Mapping[str, Any], key: str, where: str) -> str:
    value = item.get(key)
    if not isinstance(value, str) or (key != "arguments" and not value):
        raise _wrong(f"{where}.{key}", f"must be text, got {value!r:.60}")
    return value


def _wrong(where: str, words: str) -> ApiError:
    return ApiError(400, f"{where}: {words}.", param=where)
