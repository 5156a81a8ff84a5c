"""POST /v1/responses: a conversation in items, answered by items, and continued by the id of its last response."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import fields as fields_of
from typing import Any

from ....engine.handle import TimedDelta
from ...request_log import RequestLog
from ...state import AppState
from ..builder import Event, ResponseBuilder
from ..chat_request import ChatRequest, ChoicePart
from ..errors import ApiError
from ..parse import parse
from ..protocol import ChatFields, SamplingFields
from .input import Message, messages_of
from .output import ResponseOutput
from .protocol import IGNORED, LOGPROBS, REFUSED, ResponseFields
from .store import StoredResponse
from .tools import chat_choice, chat_format, chat_tools, shown_tools

_SHARED = tuple(field.name for field in fields_of(SamplingFields))
_NOTHING = StoredResponse({}, (), (), 0)
_BYTES_PER_TOKEN = 8  # of an answer, roughly; exact figures would cost time in the event loop
_BYTES_PER_RESPONSE = 2000


class ResponsesBuilder(ResponseBuilder):
    """A request for a response; `of` makes one from its body."""

    named_events = True

    @classmethod
    def of(cls, service: AppState, body: bytes, record: RequestLog) -> "ResponsesBuilder":
        """Read, render, tokenize and compile; takes long, so it runs in a thread.

        Raises:
            ApiError, RequestError: the request cannot be run as it is.
        """
        fields = parse(ResponseFields, body, IGNORED, REFUSED)
        _check(fields)
        continued = fields.previous_response_id
        before = _NOTHING if continued is None else service.responses.get(continued, "previous_response_id")
        conversation = [*before.messages, *messages_of(fields.input, before.messages)]
        if not conversation:
            raise ApiError(400, "input: at least one item is needed.", param="input")
        chat = ChatRequest.of(service, _chat_fields(fields, conversation), record)
        return cls(service, chat, fields, record, _Conversation(conversation, before.bytes + len(body)))

    def __init__(
        self,
        service: AppState,
        chat: ChatRequest,
        fields: ResponseFields,
        record: RequestLog,
        conversation: "_Conversation",
    ) -> None:
        super().__init__(service, chat.served, [chat.request], bool(fields.stream), record)
        self._store = service.responses
        self._fields = fields
        self._conversation = conversation
        self._texts = chat.served.token_texts
        self._choice = chat.choice()
        self._output = ResponseOutput(record.id)
        self._frame = _frame(fields, chat, record, store=fields.store is not False and service.responses.keeps)
        self._told = 0  # events so far
        self._body: dict[str, Any] | None = None

    def first_events(self) -> list[Event]:
        """The response, begun."""
        begun = self._frame | {"status": "in_progress", "output": []}
        return self._numbered([{"type": f"response.{step}", "response": begun} for step in ("created", "in_progress")])

    def events(self, piece: TimedDelta) -> list[Event]:
        """What a piece adds to the items."""
        part = self._choice.push(piece.delta)
        events = self._output.add_reasoning(part.reasoning)
        events += self._output.add_text(part.content, self._logprobs(part))
        events += self._output.add_calls(part.calls)
        if part.finish_reason is not None:
            events += self._output.finish(complete=part.finish_reason != "length")
        return self._numbered(events)

    def last_events(self) -> list[Event]:
        """The response, complete."""
        body = self.body()
        return self._numbered([{"type": f"response.{body['status']}", "response": body}])

    def failure(self, error: ApiError) -> list[Event]:
        """The response, failed."""
        told = {"code": "server_error", "message": str(error), "param": error.param, "type": error.kind}
        failed = self._frame | {"status": "failed", "error": told, "output": self._output.items}
        return self._numbered([{"type": "response.failed", "response": failed}])

    def body(self) -> dict[str, Any]:
        """The complete response; it is stored by now, if that was asked for."""
        if self._body is None:
            self._body = self._complete()
            if self._frame["store"]:
                self._keep(self._body)
        return self._body

    @property
    def reason(self) -> str:
        """Why the answer ended."""
        return self._choice.finish_reason or ""

    def _complete(self) -> dict[str, Any]:
        self.record_figures()
        cut = self.reason == "length"
        state = {
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "completed_at": None if cut else int(time.time()),
            "output": self._output.items,
            "usage": _usage(self.record, self._choice.reasoning_tokens),
        }
        return self._frame | state | self.timings()

    def _keep(self, body: dict[str, Any]) -> None:
        said, calls = self._choice.content, self._choice.calls
        answer: Message = {"role": "assistant", "content": said or (None if calls else "")}
        if self._choice.reasoning:
            answer["reasoning_content"] = self._choice.reasoning
        if calls:
            functions = [{"name": call.name, "arguments": call.arguments} for call in calls]
            answer["tool_calls"] = [
                {"id": call.id, "type": "function", "function": function}
                for call, function in zip(calls, functions, strict=True)
            ]
        items = _input_items(self._fields, self.record.id)
        size = self._conversation.bytes + _BYTES_PER_TOKEN * self.record.generated_tokens + _BYTES_PER_RESPONSE
        self._store.put(StoredResponse(body, items, [*self._conversation.messages, answer], size))

    def _logprobs(self, part: ChoicePart) -> list[dict[str, Any]]:
        if not part.logprobs:
            return []
        rows: list[dict[str, Any]] = self._texts.chat(part.logprobs)["content"]
        return rows

    def _numbered(self, events: list[Event]) -> list[Event]:
        numbered = [event | {"sequence_number": self._told + place} for place, event in enumerate(events)]
        self._told += len(events)
        return numbered


@dataclass(frozen=True)
class _Conversation:
    """All messages but instructions and answer, and what they take as JSON, about."""

    messages: Sequence[Message]
    bytes: int


def _check(fields: ResponseFields) -> None:
    if fields.background:
        raise ApiError(400, "background: responses are answered at once; leave it out.", param="background")
    if fields.max_output_tokens is not None and fields.max_output_tokens < 1:
        raise ApiError(
            400, f"max_output_tokens must be at least 1, got {fields.max_output_tokens}.", param="max_output_tokens"
        )
    if fields.top_logprobs and LOGPROBS not in (fields.include or ()):
        raise ApiError(400, f"top_logprobs needs include to name {LOGPROBS}.", param="top_logprobs")
    metadata = fields.metadata or {}
    if len(metadata) > 16 or any(len(name) > 64 or len(value) > 512 for name, value in metadata.items()):
        raise ApiError(400, "metadata: up to 16 names of 64 characters, values of 512.", param="metadata")


def _chat_fields(fields: ResponseFields, conversation: Sequence[Message]) -> ChatFields:
    """The same request, as a chat would make it."""
    logprobs = LOGPROBS in (fields.include or ())
    system = [] if fields.instructions is None else [{"role": "system", "content": fields.instructions}]
    return ChatFields(
        **{name: getattr(fields, name) for name in _SHARED},
        messages=(*system, *conversation),
        max_tokens=fields.max_output_tokens,
        logprobs=logprobs,
        top_logprobs=(fields.top_logprobs or 0) if logprobs else None,
        response_format=chat_format(fields.text.format if fields.text else None),
        tools=chat_tools(fields.tools),
        tool_choice=chat_choice(fields.tool_choice),
        parallel_tool_calls=fields.parallel_tool_calls,
        reasoning_effort=fields.reasoning.effort if fields.reasoning else None,
        enable_thinking=fields.enable_thinking,
        thinking_budget=fields.thinking_budget,
        chat_template_kwargs=fields.chat_template_kwargs,
    )


def _frame(fields: ResponseFields, chat: ChatRequest, record: RequestLog, *, store: bool) -> dict[str, Any]:
    """What is known of a response before it is answered, in OpenAI's order."""
    params = chat.request.params
    wanted = fields.text.format if fields.text else None
    return {
        "id": f"resp_{record.id}",
        "object": "response",
        "created_at": record.created,
        "status": "in_progress",
        "background": False,
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "instructions": fields.instructions,
        "max_output_tokens": fields.max_output_tokens,
        "metadata": dict(fields.metadata or {}),
        "model": chat.served.name,
        "output": [],
        "parallel_tool_calls": fields.parallel_tool_calls is not False,
        "previous_response_id": fields.previous_response_id,
        "reasoning": {"effort": fields.reasoning.effort if fields.reasoning else None, "summary": None},
        "service_tier": "default",
        "store": store,
        "temperature": params.temperature,
        "text": {"format": wanted or {"type": "text"}},
        "tool_choice": fields.tool_choice if fields.tool_choice is not None else "auto",
        "tools": shown_tools(fields.tools),
        "top_logprobs": fields.top_logprobs or 0,
        "top_p": params.top_p,
        "truncation": "disabled",
        "usage": None,
    }


def _usage(record: RequestLog, reasoning_tokens: int) -> dict[str, Any]:
    return {
        "input_tokens": record.prompt_tokens,
        "input_tokens_details": {"cached_tokens": record.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": record.generated_tokens,
        "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
        "total_tokens": record.prompt_tokens + record.generated_tokens,
    }


def _input_items(fields: ResponseFields, response_id: str) -> list[dict[str, Any]]:
    """What was asked, as GET …/input_items shows it."""
    given = fields.input
    if isinstance(given, str):
        given = ({"role": "user", "content": [{"type": "input_text", "text": given}], "status": "completed"},)
    return [{"type": "message", "id": f"in_{response_id}{place:04d}"} | item for place, item in enumerate(given)]
