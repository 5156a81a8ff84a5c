"""The content of messages as a template takes it: text or parts. What it would leave out is refused.

Templates read content in many ways, and most drop what they do not expect without a word. So nothing is concluded from
the source: marks are rendered in each form when the template is loaded, and each prompt is searched for its messages.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ChatTemplateError, RequestError

Message = dict[str, Any]
Render = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]] | None], str]
_ABSENT = object()
_MARKS = ("zq7first81", "zq7second82")
_NAME = "zq7name83"
# A list or dictionary that was written as it is: 'text': 'MARK' of Python, "text": "MARK" of JSON.
_WRITTEN_OUT = r"text\\?['\"]: ?\\?['\"]"
_SHORT = 16  # characters; a shorter text may stand in the prompt by chance
_FEW = 8  # messages; their prompt is rendered a second time rather than trusted
_NEAR = 1000  # characters within which the next text mostly begins: a short range is searched much faster
_MOST_MISSES = 8  # texts that are looked for in vain, each through the rest of the prompt
_MOST_VERIFIED = 1000
_CALL = {"id": "abcdef123", "type": "function", "function": {"name": _NAME, "arguments": {}}}
_TEXT_CALL = _CALL | {"function": {"name": _NAME, "arguments": "{}"}}
_TOOL = {
    "type": "function",
    "function": {"name": _NAME, "description": "x", "parameters": {"type": "object", "properties": {}}},
}
_ASK: Message = {"role": "user", "content": "a"}


@dataclass(frozen=True)
class Forms:
    """Which forms of content show all their text: a string, a list of one part, a list of several."""

    string: bool
    part: bool
    parts: bool

    def fitting(self, content: str | list[Any]) -> str | list[Any]:
        """The content as it came where that shows it; otherwise in a form that does."""
        if isinstance(content, str):
            return [{"type": "text", "text": content}] if self.part and not self.string else content
        if self.parts or (self.part and len(content) == 1):
            return content
        joined = "".join(part["text"] for part in content)
        return [{"type": "text", "text": joined}] if self.part and not self.string else joined


class ContentForms:
    """How one template takes contents.

    Args:
        render: messages and tools, without the beginning of an answer; raises ChatTemplateError.
    """

    def __init__(self, render: Render) -> None:
        self._render = render
        self._by_role: dict[str, Forms] = {}
        self._call_content: Any = None
        self._verified: set[Any] = set()

    def prepared(self, messages: Sequence[Message]) -> list[Message]:
        """The messages, whose contents have the forms that this template shows."""
        as_text = {role for role in {message["role"] for message in messages} if self._forms(role).string}
        return [
            message if type(message.get("content")) is str and message["role"] in as_text else self._prepared(message)
            for message in messages
        ]

    def require_shown(
        self,
        messages: Sequence[Message],
        prompt: str,
        render: Callable[[Sequence[Mapping[str, Any]]], str],
        with_tools: bool,
    ) -> None:
        """Refuse a prompt that lacks the text of a message.

        A text that is not found as it is (templates may escape or cut it) is rendered again between two marks.

        Raises:
            RequestError: names the message.
        """
        shape = _shape(messages, with_tools) if len(messages) <= _FEW else None
        missing = _missing(messages, prompt, trusting=shape is None or shape in self._verified)
        if not missing:
            return
        marked = [_marked(message, i) if i in missing else message for i, message in enumerate(messages)]
        try:
            second = render(marked).lower()
        except ChatTemplateError:
            return  # it takes this text and no other: nothing can be said
        for i in sorted(missing):
            if not _shows(second, i, messages[i]):
                raise RequestError(
                    f"messages[{i}].content: the model's chat template leaves this text out of the prompt, in part or "
                    f"as a whole (role {messages[i]['role']!r}). Put it into another message, or use another template."
                )
        if shape and len(self._verified) < _MOST_VERIFIED:
            self._verified.add(shape)

    def _prepared(self, message: Message) -> Message:
        content = message.get("content", _ABSENT)
        if content is _ABSENT and message.get("tool_calls"):
            chosen = self._content_of_calls()
            return message if chosen is _ABSENT else {**message, "content": chosen}
        if not isinstance(content, str | list):
            return message
        fitting = self._forms(message["role"]).fitting(content)
        return message if fitting is content else {**message, "content": fitting}

    def _forms(self, role: str) -> Forms:
        if (known := self._by_role.get(role)) is not None:
            return known
        found = [self._tried(role, content) for content in _contents()]
        unknown = all(shown is None for shown in found)
        fallback = Forms(True, False, False) if role == "user" else None
        self._by_role[role] = (fallback or self._forms("user")) if unknown else Forms(*map(bool, found))
        return self._by_role[role]

    def _tried(self, role: str, content: str | list[Message]) -> bool | None:
        """Whether the content is shown; None: the template refuses such a conversation."""
        texts = [content] if isinstance(content, str) else [part["text"] for part in content]
        for conversation, tools in _conversations({"role": role, "content": content}):
            try:
                prompt = self._render(conversation, tools)
            except ChatTemplateError:
                continue
            lowered = prompt.lower()
            written_out = any(re.search(_WRITTEN_OUT + text, lowered) for text in texts)
            return all(text in lowered for text in texts) and not written_out
        return None

    def _content_of_calls(self) -> Any:
        """What a message with calls and without content has in its place: None, nothing, or an empty text."""
        if self._call_content is None:
            self._call_content = (self._found_content_of_calls(),)
        return self._call_content[0]

    def _found_content_of_calls(self) -> Any:
        for call in (_CALL, _TEXT_CALL):
            shown = [(content, self._with_calls(content, call)) for content in ("", None, _ABSENT)]
            nothing = shown[0][1]
            for content, prompt in (shown[1], shown[2], shown[0]):
                if prompt is not None and _NAME in prompt and not _adds_none(prompt, nothing):
                    return content
        return _ABSENT

    def _with_calls(self, content: Any, call: Message) -> str | None:
        message: Message = {"role": "assistant", "content": content, "tool_calls": [call]}
        if content is _ABSENT:
            del message["content"]
        try:
            return self._render([_ASK, message], None)
        except ChatTemplateError:
            return None


def with_end_mark(messages: Sequence[Message]) -> tuple[list[Message], str]:
    """The messages, with a mark behind the text of the last one, which is to be continued; and the mark.

    Raises:
        RequestError: the last message has no text.
    """
    *before, last = messages
    content, mark = last.get("content"), "zq7continue84 "
    if not content or last.get("tool_calls"):
        raise RequestError("continue_final_message: the last message must have a text to continue, and no tool_calls.")
    if isinstance(content, str):
        return [*before, {**last, "content": content + mark}], mark
    end = {**content[-1], "text": content[-1]["text"] + mark}
    return [*before, {**last, "content": [*content[:-1], end]}], mark


def up_to_mark(prompt: str, mark: str) -> str:
    """The prompt up to the mark; blanks before it are cut where the template cuts the one at its end.

    Raises:
        RequestError: the template does not show the mark.
    """
    before, found, after = prompt.rpartition(mark.strip())
    if not found:
        raise RequestError("continue_final_message: the model's chat template does not show the end of the message.")
    return before if after.startswith(" ") else before.rstrip()


def _contents() -> Iterator[str | list[Message]]:
    first, second = ({"type": "text", "text": mark} for mark in _MARKS)
    yield _MARKS[0]
    yield [first]
    yield [first, second]


def _conversations(message: Message) -> Iterator[tuple[list[Message], list[Message] | None]]:
    """Conversations in which a message of its role may stand, the likeliest first."""
    role = message["role"]
    if role == "tool":
        for call in (_CALL, _TEXT_CALL):
            answer = {**message, "tool_call_id": call["id"], "name": _NAME}
            yield [_ASK, {"role": "assistant", "content": "", "tool_calls": [call]}, answer], [_TOOL]
    elif role in ("system", "developer"):
        yield [message, _ASK], None
    elif role == "assistant":
        yield [_ASK, message, _ASK], None
    yield [message], None
    in_parts = {"role": "user", "content": [{"type": "text", "text": "a"}]}
    yield [message, in_parts], None


def _adds_none(prompt: str, nothing: str | None) -> bool:
    return any(prompt.count(word) > (nothing or "").count(word) for word in ("None", "null"))


def _texts(message: Mapping[str, Any]) -> list[str]:
    content = message.get("content")
    if isinstance(content, list):
        return [part["text"] for part in content]
    return [content] if isinstance(content, str) else []


def _shape(messages: Sequence[Message], with_tools: bool) -> tuple[Any, ...]:
    return (*((m["role"], type(m.get("content")), "tool_calls" in m) for m in messages), with_tools)


def _missing(messages: Sequence[Message], prompt: str, *, trusting: bool) -> set[int]:
    """The messages whose text does not follow, as it is, that of the messages before."""
    missing: set[int] = set()
    place, short = 0, 0 if trusting else _SHORT
    for i, message in enumerate(messages):
        if "tool_calls" in message:
            continue  # templates may show the calls alone
        for text in filter(None, map(str.strip, _texts(message))):
            end = prompt.find(text, place, place + len(text) + _NEAR) + len(text)
            if end < len(text):
                end = _found(text, message["role"], prompt, place) if len(missing) < _MOST_MISSES else -1
            if end < 0 or len(text) < short:
                missing.add(i)
            place = max(place, end)
    return missing


def _found(text: str, role: str, prompt: str, start: int) -> int:
    """Where the text ends in the prompt: as it is, within JSON, or an answer without its thoughts; or -1."""
    written = {text: None, json.dumps(text, ensure_ascii=False)[1:-1]: None}
    if role == "assistant" and "</think>" in text:
        written = {text.rpartition("</think>")[2].strip(): None}
    for reach in (len(text) + _NEAR, len(prompt)):
        for form in written:
            at = prompt.find(form, start, start + reach)
            if at >= 0:
                return at + len(form)
    return -1


def _marks(place: int, part: int) -> tuple[str, str]:
    return f"zq7b{place}x{part}y", f"zq7e{place}x{part}y"


def _marked(message: Message, place: int) -> Message:
    content = message["content"]
    if isinstance(content, str):
        return {**message, "content": _between_marks(content, place, 0)}
    parts = [{**part, "text": _between_marks(part["text"], place, i)} for i, part in enumerate(content)]
    return {**message, "content": parts}


def _between_marks(text: str, place: int, part: int) -> str:
    begin, end = _marks(place, part)
    return f"{begin} {text} {end}"


def _shows(prompt: str, place: int, message: Mapping[str, Any]) -> bool:
    enough = any if message["role"] == "assistant" else all  # thoughts of earlier answers are left out by design
    return all(enough(mark in prompt for mark in _marks(place, part)) for part in range(len(_texts(message))))
