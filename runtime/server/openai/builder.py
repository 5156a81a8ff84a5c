"""What an endpoint must know of a request: its answers, and how they are written. The routes differ in it."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from starlette.types import Send

from ...client import Request
from ...engine.handle import TimedDelta
from ..request_log import RequestLog
from ..state import AppState, ServedModel
from .errors import ApiError
from .sse import EventStream, LineStream
from .stream import Generation

Event = dict[str, Any]


class ResponseBuilder(ABC):
    """One request, understood and checked, not yet started.

    Args:
        service: of the server.
        served: the model.
        requests: one per prompt.
        stream: whether the answer is sent piece by piece.
        record: of the request; it learns the figures.

    Attributes:
        named_events: whether an event of the stream says its type, instead of a [DONE] at the end.
    """

    named_events = False

    def __init__(
        self, service: AppState, served: ServedModel, requests: Sequence[Request], stream: bool, record: RequestLog
    ) -> None:
        self.stream = stream
        self.generation = Generation(served, requests, service.metrics, stream=stream)
        self.record = record

    def open_stream(self, send: Send, headers: dict[str, str]) -> EventStream | LineStream:
        """Where the answer is written piece by piece."""
        return EventStream(send, headers, named=self.named_events)

    def first_events(self) -> list[Event]:
        """What a stream begins with."""
        return []

    @abstractmethod
    def events(self, piece: TimedDelta) -> list[Event]:
        """The events of a piece; it must be called for every piece, streaming or not."""

    @abstractmethod
    def last_events(self) -> list[Event]:
        """What follows the last piece."""

    def failure(self, error: ApiError) -> list[Event]:
        """What a stream ends with when something fails in it."""
        return [error.body]

    @abstractmethod
    def body(self) -> dict[str, Any]:
        """The complete answer, after the last piece."""

    @property
    @abstractmethod
    def reason(self) -> str:
        """Why the first answer ended."""

    def record_figures(self) -> None:
        """Write what came of the request into its record."""
        record, generation = self.record, self.generation
        record.prompt_tokens, record.cached_tokens = generation.prompt_tokens, generation.cached_tokens
        record.generated_tokens = generation.generated
        record.add_times(generation.answers)

    def timings(self) -> dict[str, Any]:
        """Seconds of the stages, and the seed that repeats the answer: beyond what OpenAI says."""
        record = self.record
        timings = {"queue": record.queue, "prefill": record.prefill, "decode": record.decode}
        return {"timings": timings, "seed": self.generation.answers[0].sampler.seed}
