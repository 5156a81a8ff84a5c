"""POST /v1/chat/completions: answers to a conversation, as messages."""

from typing import Any

from ...chat.formats.format import ToolCall
from ...engine.handle import TimedDelta
from ..request_log import RequestLog
from ..state import AppState
from .builder import ChoicesBuilder
from .chat_request import ChatChoice, ChatRequest
from .parse import parse
from .protocol import ChatFields


class ChatBuilder(ChoicesBuilder):
    """A chat request; `of` makes one from its body."""

    prefix, whole, part = "chatcmpl", "chat.completion", "chat.completion.chunk"

    @classmethod
    def of(cls, service: AppState, body: bytes, record: RequestLog) -> "ChatBuilder":
        """Read, render, tokenize and compile; takes long, so it runs in a thread.

        Raises:
            ApiError, RequestError: the request cannot be run as it is.
        """
        fields = parse(ChatFields, body)
        return cls(service, ChatRequest.of(service, fields, record), fields, record)

    def __init__(self, service: AppState, chat: ChatRequest, fields: ChatFields, record: RequestLog) -> None:
        super().__init__(service, chat.served, [chat.request], fields, record)
        self._texts = chat.served.token_texts
        self._logprobs = bool(fields.logprobs)
        self._written = [chat.choice() for _ in self.generation.answers]

    def chunks(self, piece: TimedDelta) -> list[dict[str, Any]]:
        """One choice, or none while nothing is certain."""
        choice = self._written[piece.choice]
        begun = choice.begun
        new = choice.push(piece.delta)
        delta: dict[str, Any] = {} if begun else {"role": "assistant"}
        if new.reasoning:
            delta |= _thoughts(new.reasoning)
        if new.content or not (begun or new.calls or new.reasoning):
            delta["content"] = new.content
        if new.calls:
            delta["tool_calls"] = [{"index": i} | _call(call) for i, call in enumerate(new.calls, new.first_call)]
        if not (delta or new.logprobs or new.finish_reason):
            return []
        logprobs = self._texts.chat(new.logprobs) if self._logprobs and new.logprobs else None
        # Calls and the end come in two events, as from OpenAI, whose client takes calls for complete at the second.
        ends = [None, new.finish_reason] if new.calls else [new.finish_reason]
        parts = [(delta, logprobs), ({}, None)]
        return [
            {"index": piece.choice, "delta": delta, "logprobs": logprobs, "finish_reason": end}
            for (delta, logprobs), end in zip(parts, ends, strict=False)
        ]

    @property
    def reasoning_tokens(self) -> int:
        """Of all choices."""
        return sum(choice.reasoning_tokens for choice in self._written)

    @property
    def reason(self) -> str:
        """`finish_reason` of the first choice."""
        return self._written[0].finish_reason or ""

    def choices(self) -> list[dict[str, Any]]:
        """Complete messages."""
        return [
            {
                "index": index,
                "message": _assistant(choice),
                "logprobs": self._texts.chat(choice.logprobs) if self._logprobs else None,
                "finish_reason": choice.finish_reason,
            }
            for index, choice in enumerate(self._written)
        ]


def _assistant(choice: ChatChoice) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": choice.content, "refusal": None}
    if choice.reasoning:
        message |= _thoughts(choice.reasoning)
    if choice.calls:
        message["content"] = choice.content or None
        message["tool_calls"] = [_call(call) for call in choice.calls]
    return message


def _thoughts(text: str) -> dict[str, str]:
    """Under the name of DeepSeek's API, and under vLLM's."""
    return {"reasoning_content": text, "reasoning": text}


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
