"""What an endpoint must know of a request: its answers, and how they are written. The routes differ in it."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from starlette.types import Send

from ...client import Request
from ...engine.handle import TimedDelta
from ...host.packages import own_version
from ..request_log import RequestLog
from ..state import AppState, ServedModel
from .errors import ApiError
from .protocol import GenerationFields
from .stream import EventStream, Generation, LineStream

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


class ChoicesBuilder(ResponseBuilder):
    """A request whose answer has `choices` and `usage`.

    Args:
        service: of the server.
        served: the model.
        requests: one per prompt.
        fields: of the body.
        record: of the request; it learns the figures.
    """

    prefix: str  # of the id
    whole: str  # `object` of a complete answer
    part: str  # `object` of a piece of a stream

    def __init__(
        self,
        service: AppState,
        served: ServedModel,
        requests: Sequence[Request],
        fields: GenerationFields,
        record: RequestLog,
    ) -> None:
        super().__init__(service, served, requests, bool(fields.stream), record)
        options = fields.stream_options
        self._usage_wanted = options is not None and (options.include_usage or options.continuous_usage_stats)
        self._usage_always = options is not None and options.continuous_usage_stats
        self._frame = {
            "id": f"{self.prefix}-{record.id}",
            "object": self.part if self.stream else self.whole,
            "created": record.created,
            "model": served.name,
            "system_fingerprint": f"onnxlm-{own_version()}",
        }

    @abstractmethod
    def chunks(self, piece: TimedDelta) -> list[dict[str, Any]]:
        """What a stream shows of a piece: choices, each for an event of its own."""

    @abstractmethod
    def choices(self) -> list[dict[str, Any]]:
        """The complete choices, after every piece went through `chunks`."""

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of thoughts in all choices."""
        return 0

    def events(self, piece: TimedDelta) -> list[Event]:
        """The events of a piece."""
        usage: dict[str, Any] = {"usage": None} if self._usage_wanted else {}
        if self._usage_always:
            usage["usage"] = self._figures()["usage"]
        return [self._frame | {"choices": [choice]} | usage for choice in self.chunks(piece)]

    def last_events(self) -> list[Event]:
        """The usage, where asked for."""
        return [self._frame | {"choices": []} | self._figures()] if self._usage_wanted else []

    def body(self) -> dict[str, Any]:
        """The complete answer."""
        return self._frame | {"choices": self.choices()} | self._figures()

    def _figures(self) -> dict[str, Any]:
        self.record_figures()
        record = self.record
        usage = {
            "prompt_tokens": record.prompt_tokens,
            "completion_tokens": record.generated_tokens,
            "total_tokens": record.prompt_tokens + record.generated_tokens,
            "prompt_tokens_details": {"cached_tokens": record.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
        }
        return {"usage": usage} | self.timings()
