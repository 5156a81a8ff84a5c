"""POST /v1/messages: an answer as content blocks, whole or in typed events."""

import json
from collections.abc import Mapping
from typing import Any

from ...chat.formats.format import ToolCall
from ...engine.handle import TimedDelta
from ..openai.builder import Event, ResponseBuilder
from ..openai.chat_request import ChatRequest
from ..openai.errors import ApiError
from ..openai.parse import parse
from ..request_log import RequestLog
from ..state import AppState
from .messages import chat_fields
from .protocol import IGNORED, REFUSED, MessageFields

_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def error_body(error: ApiError) -> dict[str, Any]:
    """An error as Anthropic's clients expect it."""
    kind = _KINDS.get(error.status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": str(error)}}


class MessageBuilder(ResponseBuilder):
    """A request for a message; `of` makes one from its body."""

    named_events = True

    @classmethod
    def of(cls, service: AppState, body: bytes, record: RequestLog) -> "MessageBuilder":
        """Read, render, tokenize and compile; takes long, so it runs in a thread.

        Raises:
            ApiError, RequestError: the request cannot be run as it is.
        """
        fields = parse(MessageFields, body, IGNORED, REFUSED)
        if fields.max_tokens < 1:
            raise ApiError(400, f"max_tokens must be at least 1, got {fields.max_tokens}.", param="max_tokens")
        return cls(service, ChatRequest.of(service, chat_fields(fields), record), fields, record)

    def __init__(self, service: AppState, chat: ChatRequest, fields: MessageFields, record: RequestLog) -> None:
        super().__init__(service, chat.served, [chat.request], bool(fields.stream), record)
        self._choice = chat.choice()
        self._stops = fields.stop_sequences or ()
        self._blocks: list[dict[str, Any]] = []
        self._frame = {
            "id": f"msg_{record.id}",
            "type": "message",
            "role": "assistant",
            "model": chat.served.name,
        }

    def first_events(self) -> list[Event]:
        """The message, begun."""
        usage = {"input_tokens": self.generation.prompt_tokens, "output_tokens": 0}
        begun: Event = self._frame | {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        return [{"type": "message_start", "message": begun}]

    def events(self, piece: TimedDelta) -> list[Event]:
        """What a piece adds to the blocks."""
        part = self._choice.push(piece.delta)
        found = self._add("thinking", part.reasoning) if part.reasoning else []
        found += self._add("text", part.content) if part.content else []
        return found + [event for call in part.calls for event in self._add_call(call)]

    def last_events(self) -> list[Event]:
        """The end of the last block, why the message ended, and its usage."""
        ends = {"stop_reason": self.reason, "stop_sequence": None}
        last: list[Event] = [{"type": "message_delta", "delta": ends, "usage": self._usage()}, {"type": "message_stop"}]
        return [*self._ended(), *last]

    def failure(self, error: ApiError) -> list[Event]:
        """An error inside a stream."""
        return [error_body(error)]

    def body(self) -> dict[str, Any]:
        """The complete message."""
        return self._frame | {
            "content": self._blocks,
            "stop_reason": self.reason,
            "stop_sequence": None,
            "usage": self._usage(),
        }

    @property
    def reason(self) -> str:
        """`stop_reason`."""
        return _REASONS.get(self._choice.finish_reason or "", "end_turn")

    def _add(self, kind: str, text: str) -> list[Event]:
        """Text or thoughts, in a new block where the last one is of another kind."""
        events = [] if self._blocks and self._blocks[-1]["type"] == kind else self._begin({"type": kind, kind: ""})
        self._blocks[-1][kind] += text
        return [*events, self._delta({"type": f"{kind}_delta", kind: text})]

    def _add_call(self, call: ToolCall) -> list[Event]:
        given = json.loads(call.arguments or "{}")
        events = self._begin({"type": "tool_use", "id": call.id, "name": call.name, "input": {}})
        self._blocks[-1]["input"] = given if isinstance(given, Mapping) else {"value": given}
        return [*events, self._delta({"type": "input_json_delta", "partial_json": call.arguments or "{}"})]

    def _begin(self, block: dict[str, Any]) -> list[Event]:
        ended = self._ended()
        self._blocks.append(block)
        return [*ended, {"type": "content_block_start", "index": len(self._blocks) - 1, "content_block": dict(block)}]

    def _delta(self, delta: dict[str, Any]) -> Event:
        return {"type": "content_block_delta", "index": len(self._blocks) - 1, "delta": delta}

    def _ended(self) -> list[Event]:
        if not self._blocks:
            return []
        events: list[Event] = []
        if self._blocks[-1]["type"] == "thinking":
            self._blocks[-1]["signature"] = ""  # thoughts of this server are plain: nothing vouches for them
            events = [self._delta({"type": "signature_delta", "signature": ""})]
        return [*events, {"type": "content_block_stop", "index": len(self._blocks) - 1}]

    def _usage(self) -> dict[str, int]:
        self.record_figures()
        record = self.record
        return {
            "input_tokens": record.prompt_tokens - record.cached_tokens,
            "cache_read_input_tokens": record.cached_tokens,
            "cache_creation_input_tokens": 0,
            "output_tokens": record.generated_tokens,
        }
