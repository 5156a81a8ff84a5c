"""Answers as a list of choices: what chat and completion have in common."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from ...client import Request
from ...engine.handle import TimedDelta
from ...host.packages import own_version
from ..request_log import RequestLog
from ..state import AppState, ServedModel
from .builder import Event, ResponseBuilder
from .protocol import GenerationFields


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
        self._usage_wanted = fields.stream_options is not None and fields.stream_options.include_usage
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
        usage = {"usage": None} if self._usage_wanted else {}
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
