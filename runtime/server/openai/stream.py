"""From the engine to the client: the answers to one HTTP request piece by piece, and how pieces are written."""

import json
import logging
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Any

from starlette.types import Send

from ...client import Request
from ...engine.generation import RequestState
from ...engine.handle import RequestHandle, TimedDelta
from ...errors import ExecutionError
from ..metrics import Metrics
from ..state import ServedModel
from .errors import ApiError, api_error, stopping

_log = logging.getLogger("onnxlm.server")
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would collect the events
]


class Generation:
    """Answers requests that belong together; leaving the context cancels what has not ended.

    Args:
        served: the model.
        requests: one per prompt; each has `n` choices, and those are numbered through.
        metrics: told of every token and end.
        stream: wake the event loop for every piece, not only when a choice has ended.

    Attributes:
        answers: one per choice.
    """

    def __init__(self, served: ServedModel, requests: Sequence[Request], metrics: Metrics, *, stream: bool) -> None:
        self.served = served
        self.requests = requests
        self.answers: list[RequestState] = [one for request in requests for one in served.model.answers(request)]
        self._metrics = metrics
        self._stream = stream
        self._handle: RequestHandle | None = None

    def start(self) -> None:
        """Hand everything to the engine, or nothing.

        Raises:
            QueueFullError: too much is waiting.
            ApiError: 503: the engine has stopped.
        """
        try:
            self._handle = RequestHandle(self.served.model.engine, self.answers, streamed=self._stream)
        except ExecutionError as error:
            _log.error("a request was not begun: %s", error)
            words = "The engine has stopped; the server's log says why. It must be restarted."
            raise ApiError(503, words, "server_error", code="engine_stopped") from error

    async def pieces(self, patience: float | None = None) -> AsyncIterator[TimedDelta | None]:
        """Every piece until all choices have ended; None after `patience` seconds without one.

        Raises:
            ApiError: a choice failed, ran out of time, or was cancelled by the server.
        """
        assert self._handle is not None
        last: dict[int, float] = {}
        while not self._handle.ended:
            piece = await self._handle.next_piece_async(patience)
            if piece is not None:
                self._count(piece, last)
                self._require_good_end(piece)
            yield piece

    async def __aenter__(self) -> "Generation":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._handle is not None:
            self._handle.close()
            self._metrics.ended(self.served.name, self.answers)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(len(request.ids) for request in self.requests)

    @property
    def cached_tokens(self) -> int:
        """How many of them were found in the cache, for each prompt's first choice."""
        return sum(answer.sequence.num_cached for answer in self.answers if answer.index == 0)

    @property
    def generated(self) -> int:
        """Tokens of all choices so far."""
        return sum(answer.sequence.generated for answer in self.answers)

    def _count(self, piece: TimedDelta, last: dict[int, float]) -> None:
        if not piece.delta.token_ids:
            return
        if piece.choice in last:
            self._metrics.token_after(self.served.name, piece.at - last[piece.choice])
        last[piece.choice] = piece.at

    def _require_good_end(self, piece: TimedDelta) -> None:
        reason = piece.delta.finish_reason
        if reason == "error":
            raise api_error(self.answers[piece.choice].error or ExecutionError("The request failed."))
        if reason == "timeout":
            raise ApiError(408, "The request took longer than its timeout.", "timeout_error", code="timeout")
        if reason == "cancelled":
            raise stopping()


class LineStream:
    """Writes one response of JSON objects, one a line (application/x-ndjson)."""

    def __init__(self, send: Send, headers: dict[str, str]) -> None:
        self._send = send
        kind = (b"content-type", b"application/x-ndjson")
        self._headers = [kind, *_HEADERS[1:], *((name.encode(), value.encode()) for name, value in headers.items())]

    async def start(self) -> None:
        """Send status 200; from here on an error is an object."""
        await self._send({"type": "http.response.start", "status": 200, "headers": self._headers})

    async def data(self, *values: Any) -> None:
        """Send objects, each a line of its own."""
        if values:
            lines = (json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n" for value in values)
            await self._write("".join(lines), more=True)

    async def ping(self) -> None:
        """An empty line would be an error to clients: say nothing."""

    async def done(self) -> None:
        """End the stream."""
        await self._write("", more=False)

    async def _write(self, text: str, *, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": text.encode(), "more_body": more})


class EventStream:
    """Writes one response of server-sent events: JSON objects, and comments against silence.

    Args:
        send: of ASGI.
        headers: of the response.
        named: say the `type` of each object as the event's name; otherwise the stream ends with [DONE].
    """

    def __init__(self, send: Send, headers: dict[str, str], *, named: bool = False) -> None:
        self._send = send
        self._named = named
        self._headers = [*_HEADERS, *((name.encode(), value.encode()) for name, value in headers.items())]

    async def start(self) -> None:
        """Send status 200; from here on an error is an event."""
        await self._send({"type": "http.response.start", "status": 200, "headers": self._headers})

    async def data(self, *values: Any) -> None:
        """Send objects, each an event of its own."""
        if values:
            await self._write("".join(map(self._event, values)), more=True)

    async def ping(self) -> None:
        """Send a comment, which clients skip."""
        await self._write(": ping\n\n", more=True)

    async def done(self) -> None:
        """End the stream."""
        await self._write("" if self._named else "data: [DONE]\n\n", more=False)

    def _event(self, value: Any) -> str:
        name = f"event: {value['type']}\n" if self._named else ""
        return f"{name}data: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}\n\n"

    async def _write(self, text: str, *, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": text.encode(), "more_body": more})
