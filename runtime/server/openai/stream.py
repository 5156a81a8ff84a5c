"""The answers to one HTTP request on their way from the engine's thread to the event loop."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from types import TracebackType

from ...client import Request
from ...engine.generation import OutputDelta, RequestState
from ...errors import ExecutionError
from ..metrics import Metrics
from ..state import ServedModel
from .errors import ApiError, api_error, stopping


@dataclass(frozen=True, slots=True)
class TimedDelta:
    """What one step added to one choice, and when, in seconds of a monotonic clock."""

    choice: int
    delta: OutputDelta
    at: float


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
        self.answers: list[RequestState] = []
        self._metrics = metrics
        self._stream = stream
        self._inbox: deque[TimedDelta] = deque()
        self._arrived = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open: set[int] = set()  # choices that were submitted and have not ended
        for request in requests:
            self._add(request)

    def _add(self, request: Request) -> None:
        first = len(self.answers)

        def listen(_: RequestState, delta: OutputDelta) -> None:
            assert self._loop is not None
            self._inbox.append(TimedDelta(first + delta.index, delta, time.monotonic()))
            if self._stream or delta.finish_reason is not None:
                self._loop.call_soon_threadsafe(self._arrived.set)

        self.answers += self.served.model.answers(request, listen, streamed=self._stream)

    def start(self) -> None:
        """Hand everything to the engine, or nothing.

        Raises:
            QueueFullError: too much is waiting.
            ApiError: 503: the engine has stopped.
        """
        self._loop = asyncio.get_running_loop()
        try:
            self.served.model.engine.submit(self.answers)
        except ExecutionError as error:
            raise ApiError(503, str(error), "server_error", code="engine_stopped") from error
        self._open = set(range(len(self.answers)))

    async def pieces(self, aging_seconds: float | None = None) -> AsyncIterator[TimedDelta | None]:
        """Every piece until all choices have ended; None after `patience` seconds without one.

        Raises:
            ApiError: a choice failed, ran out of time, or was cancelled by the server.
        """
        last: dict[int, float] = {}
        while self._open:
            piece = await self._next(aging_seconds)
            if piece is not None:
                self._count(piece, last)
                if piece.delta.finish_reason is not None:
                    self._open.discard(piece.choice)
                    self._require_good_end(piece)
            yield piece

    async def __aenter__(self) -> "Generation":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for choice in self._open:
            self.served.model.engine.cancel(self.answers[choice])
        if self._loop is not None:
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

    async def _next(self, aging_seconds: float | None) -> TimedDelta | None:
        while not self._inbox:
            self._arrived.clear()
            if self._inbox:  # the engine's thread came between
                break
            try:
                async with asyncio.timeout(aging_seconds):
                    await self._arrived.wait()
            except TimeoutError:
                return None
        return self._inbox.popleft()

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
