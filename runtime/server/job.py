"""What an endpoint must know of a request: its answers, and how they are written. Chat and completion differ in it."""

from abc import ABC, abstractmethod
from typing import Any

from ..installation import own_version
from ..model import Request
from .fields import GenerationFields
from .generation import Generation, Piece
from .request_record import RequestRecord
from .service import ServedModel, Service


class Job(ABC):
    """One request, understood and checked, not yet started.

    Args:
        service: of the server.
        served: the model.
        requests: one per prompt.
        fields: of the body.
        record: of the request; it learns the model and the figures.
    """

    prefix: str  # of the id
    whole: str  # `object` of a complete answer
    part: str  # `object` of a piece of a stream

    def __init__(
        self,
        service: Service,
        served: ServedModel,
        requests: list[Request],
        fields: GenerationFields,
        record: RequestRecord,
    ) -> None:
        self.stream = bool(fields.stream)
        self.generation = Generation(served, requests, service.metrics, stream=self.stream)
        self._usage_wanted = fields.stream_options is not None and fields.stream_options.include_usage
        self._record = record
        self._frame = {
            "id": f"{self.prefix}-{record.id}",
            "object": self.part if self.stream else self.whole,
            "created": record.created,
            "model": served.name,
            "system_fingerprint": f"onnxlm-{own_version()}",
        }

    @abstractmethod
    def chunks(self, piece: Piece) -> list[dict[str, Any]]:
        """What a stream shows of a piece: choices, each for an event of its own."""

    @abstractmethod
    def choices(self) -> list[dict[str, Any]]:
        """The complete choices, after every piece went through `chunks`."""

    def events(self, piece: Piece) -> list[dict[str, Any]]:
        """The events of a piece."""
        usage = {"usage": None} if self._usage_wanted else {}
        return [self._frame | {"choices": [choice]} | usage for choice in self.chunks(piece)]

    def last_events(self) -> list[dict[str, Any]]:
        """What follows the last piece: the usage, where asked for."""
        return [self._frame | {"choices": []} | self._figures()] if self._usage_wanted else []

    def body(self) -> dict[str, Any]:
        """The complete answer."""
        return self._frame | {"choices": self.choices()} | self._figures()

    def record_figures(self) -> None:
        """Write what came of the request into its record."""
        record, generation = self._record, self.generation
        record.prompt_tokens, record.cached_tokens = generation.prompt_tokens, generation.cached_tokens
        record.generated_tokens = generation.generated
        record.add_times(generation.answers)

    def _figures(self) -> dict[str, Any]:
        self.record_figures()
        record = self._record
        usage = {
            "prompt_tokens": record.prompt_tokens,
            "completion_tokens": record.generated_tokens,
            "total_tokens": record.prompt_tokens + record.generated_tokens,
            "prompt_tokens_details": {"cached_tokens": record.cached_tokens},
        }
        timings = {"queue": record.queue, "prefill": record.prefill, "decode": record.decode}
        return {"usage": usage, "timings": timings, "seed": self.generation.answers[0].sampler.seed}
