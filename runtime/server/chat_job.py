"""POST /v1/chat/completions: a conversation to a prompt, and answers to messages."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..answer import Delta
from ..logprobs import TokenLogprob
from ..tool_calls import ToolCall, ToolCallReader
from .chat_format import ChatFormat, chat_format
from .error_answers import ApiError
from .fields import ChatFields, parse
from .generation import Piece
from .job import Job
from .parameters import limit_of, sampling_params
from .request_record import RequestRecord
from .service import ServedModel, Service

_OURS = {"messages", "tools", "add_generation_prompt"}  # variables of a template that a request has fields for


class ChatJob(Job):
    """A chat request; `of` makes one from its body."""

    prefix, whole, part = "chatcmpl", "chat.completion", "chat.completion.chunk"

    @classmethod
    def of(cls, service: Service, body: bytes, record: RequestRecord) -> "ChatJob":
        """Read, render, tokenize and compile; takes long, so it runs in a thread.

        Raises:
            ApiError, RequestError: the request cannot be run as it is.
        """
        fields = parse(ChatFields, body)
        served = service.find(fields.model)
        record.model, record.stream = served.name, bool(fields.stream)
        served.require_room(fields.n or 1)
        form = chat_format(fields, served.template.tool_family, served.model.tokenizer)
        prompt = served.template.render(
            [_message(message) for message in fields.messages], tools=form.tools, **_variables(fields)
        )
        params = sampling_params(
            limit_of(fields, fields.max_completion_tokens),
            max_tokens=service.options.default_max_tokens,
            logprobs=_logprobs(fields),
            structured=form.structured,
        )
        timeout = service.timeout(fields.timeout)
        request = served.model.request(prompt, params, timeout=timeout, special_tokens=False)
        return cls(service, served, fields, form, request, record)

    def __init__(
        self,
        service: Service,
        served: ServedModel,
        fields: ChatFields,
        form: ChatFormat,
        request: Any,
        record: RequestRecord,
    ) -> None:
        super().__init__(service, served, [request], fields, record)
        self._texts = served.token_texts
        self._logprobs = bool(fields.logprobs)
        self._ends = frozenset({*served.model.bundle.manifest.tokens.eos, *request.params.stop_token_ids})
        self._written = [_Choice(form.reader()) for _ in self.generation.answers]

    def chunks(self, piece: Piece) -> list[dict[str, Any]]:
        """One choice, or none while nothing is certain."""
        choice = self._written[piece.choice]
        begun = choice.begun
        new = choice.push(piece.delta, self._ends)
        delta: dict[str, Any] = {} if begun else {"role": "assistant"}
        if new.content or not (begun or new.calls):
            delta["content"] = new.content
        if new.calls:
            delta["tool_calls"] = [{"index": i} | _call(call) for i, call in enumerate(new.calls)]
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


@dataclass
class _Part:
    """What a piece adds to a choice."""

    content: str
    calls: list[ToolCall]
    logprobs: tuple[TokenLogprob, ...]
    finish_reason: str | None


@dataclass
class _Choice:
    """One choice as far as it is known."""

    reader: ToolCallReader | None
    begun: bool = False
    content: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None

    def push(self, delta: Delta, ends: frozenset[int]) -> _Part:
        self.begun = True
        text, calls = (delta.text, []) if self.reader is None else self._read(self.reader, delta)
        entries = delta.logprobs
        if delta.finish_reason == "stop" and delta.token_ids and delta.token_ids[-1] in ends:
            entries = entries[:-1]  # the end token is not part of the text
        self.content += text
        self.calls += calls
        self.logprobs += entries
        self.finish_reason = "tool_calls" if calls and delta.finish_reason == "stop" else delta.finish_reason
        return _Part(text, calls, entries, self.finish_reason)

    @staticmethod
    def _read(reader: ToolCallReader, delta: Delta) -> tuple[str, list[ToolCall]]:
        text = reader.push(delta.text)
        if delta.finish_reason is None:
            return text, []
        rest, calls = reader.finish()
        return text + rest, calls


def _assistant(choice: _Choice) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": choice.content, "refusal": None}
    if choice.calls:
        message["content"] = choice.content or None
        message["tool_calls"] = [_call(call) for call in choice.calls]
    return message


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _message(message: dict[str, Any]) -> Mapping[str, Any]:
    """A message whose role "developer", which templates do not know, is "system"."""
    return message | {"role": "system"} if message.get("role") == "developer" else message


def _variables(fields: ChatFields) -> dict[str, Any]:
    variables = fields.chat_template_kwargs or {}
    taken = sorted(_OURS & variables.keys()) + [name for name in variables if not name.isidentifier()]
    if taken:
        raise ApiError(400, f"chat_template_kwargs: {taken[0]!r:.60} cannot be set here.", param="chat_template_kwargs")
    return variables


def _logprobs(fields: ChatFields) -> int | None:
    if fields.top_logprobs is not None and not fields.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs to be true.", param="top_logprobs")
    count = fields.top_logprobs or 0
    if not 0 <= count <= 20:
        raise ApiError(400, f"top_logprobs must be from 0 to 20, got {count}.", param="top_logprobs")
    return count if fields.logprobs else None
