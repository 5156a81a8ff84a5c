"""POST /api/chat and /api/generate: answers as JSON objects, one a line."""

import json
from datetime import UTC, datetime
from typing import Any

from starlette.types import Send

from ...engine.handle import TimedDelta
from ..openai.builder import Event, ResponseBuilder
from ..openai.chat_request import ChatRequest
from ..openai.errors import ApiError
from ..openai.parameters import limit_of, sampling_params
from ..openai.parse import parse
from ..openai.protocol import CompletionFields
from ..openai.stream import LineStream
from ..request_log import RequestLog
from ..state import AppState
from .protocol import IGNORED, REFUSED, ChatFields, GenerateFields
from .requests import chat_fields, model_name, sampling

_NANO = 1_000_000_000
_REASONS = {"tool_calls": "stop"}


def error_body(error: ApiError) -> dict[str, Any]:
    """An error as Ollama's clients expect it."""
    return {"error": str(error)}


class OllamaBuilder(ResponseBuilder):
    """What both routes share: frames, ends and figures."""

    def open_stream(self, send: Send, headers: dict[str, str]) -> LineStream:
        """One object a line, and no last line that is none."""
        return LineStream(send, headers)

    def failure(self, error: ApiError) -> list[Event]:
        """An error inside a stream."""
        return [error_body(error)]

    def frame(self, content: dict[str, Any], **rest: Any) -> dict[str, Any]:
        """One object of the answer."""
        now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        return {"model": self.generation.served.name, "created_at": now} | content | rest

    def ended(self, content: dict[str, Any], reason: str) -> dict[str, Any]:
        """The last object: why it ended, and how long everything took, in nanoseconds."""
        self.record_figures()
        record = self.record
        seconds = [value or 0.0 for value in (record.queue, record.prefill, record.decode)]
        return self.frame(
            content,
            done=True,
            done_reason=_REASONS.get(reason, reason),
            total_duration=int(sum(seconds) * _NANO),
            load_duration=0,
            prompt_eval_count=record.prompt_tokens,
            prompt_eval_duration=int(seconds[1] * _NANO),
            eval_count=record.generated_tokens,
            eval_duration=int(seconds[2] * _NANO),
        )


class OllamaChatBuilder(OllamaBuilder):
    """A chat, or a generation through the chat template."""

    @classmethod
    def of_chat(cls, service: AppState, body: bytes, record: RequestLog) -> "OllamaChatBuilder":
        """POST /api/chat."""
        return cls(service, parse(ChatFields, body, IGNORED, REFUSED), record)

    def __init__(self, service: AppState, fields: ChatFields | GenerateFields, record: RequestLog) -> None:
        chat = ChatRequest.of(service, chat_fields(fields, service), record)
        super().__init__(service, chat.served, [chat.request], fields.stream is not False, record)
        self._choice = chat.choice()
        self._is_chat = isinstance(fields, ChatFields)

    def events(self, piece: TimedDelta) -> list[Event]:
        """What a piece adds; nothing while nothing is certain."""
        part = self._choice.push(piece.delta)
        calls = [_call(call.name, call.arguments) for call in part.calls]
        if not (part.content or part.reasoning or calls):
            return []
        return [self.frame(self._content(part.content, part.reasoning, calls), done=False)]

    def last_events(self) -> list[Event]:
        """The end."""
        return [self.ended(self._content("", "", []), self.reason)]

    def body(self) -> dict[str, Any]:
        """The complete answer."""
        calls = [_call(call.name, call.arguments) for call in self._choice.calls]
        return self.ended(self._content(self._choice.content, self._choice.reasoning, calls), self.reason)

    @property
    def reason(self) -> str:
        """Why the answer ended."""
        return self._choice.finish_reason or ""

    def _content(self, text: str, thinking: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
        thoughts = {"thinking": thinking} if thinking else {}
        if not self._is_chat:
            return {"response": text} | thoughts
        return {"message": {"role": "assistant", "content": text} | thoughts | ({"tool_calls": calls} if calls else {})}


class OllamaRawBuilder(OllamaBuilder):
    """A generation from a prompt as it stands."""

    def __init__(self, service: AppState, fields: GenerateFields, record: RequestLog) -> None:
        served = service.find(model_name(fields.model))
        record.model, record.stream = served.name, fields.stream is not False
        plain = CompletionFields(model=served.name, prompt=fields.prompt, **sampling(fields, service))
        params = sampling_params(
            limit_of(plain, None), max_tokens=service.options.default_max_tokens, logprobs=None, structured=None
        )
        request = served.model.request(fields.prompt, params, timeout=service.timeout(None), special_tokens=False)
        super().__init__(service, served, [request], fields.stream is not False, record)
        self._text = self._reason = ""

    def events(self, piece: TimedDelta) -> list[Event]:
        """What a piece adds."""
        self._text += piece.delta.text
        self._reason = piece.delta.finish_reason or ""
        return [self.frame({"response": piece.delta.text}, done=False)] if piece.delta.text else []

    def last_events(self) -> list[Event]:
        """The end."""
        return [self.ended({"response": ""}, self._reason)]

    def body(self) -> dict[str, Any]:
        """The complete answer."""
        return self.ended({"response": self._text}, self._reason)

    @property
    def reason(self) -> str:
        """Why the answer ended."""
        return self._reason


def generation(service: AppState, body: bytes, record: RequestLog) -> OllamaBuilder:
    """POST /api/generate.

    Raises:
        ApiError, RequestError: the request cannot be run as it is.
    """
    fields = parse(GenerateFields, body, IGNORED, REFUSED)
    if not fields.raw:
        return OllamaChatBuilder(service, fields, record)
    if fields.system or fields.format or fields.think is not None:
        raise ApiError(400, "raw: the prompt is taken as it is: leave out system, format and think.", param="raw")
    return OllamaRawBuilder(service, fields, record)


def _call(name: str, arguments: str) -> dict[str, Any]:
    return {"function": {"name": name, "arguments": json.loads(arguments or "{}")}}
