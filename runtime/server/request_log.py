"""What is remembered of one request: a line in the log, never its text."""

import json
import logging
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from ..engine.generation import RequestState

_log = logging.getLogger("onnxlm.requests")


@dataclass
class RequestLog:
    """One request from its arrival to its end; times in seconds, None where it never came to that."""

    id: str
    path: str
    model: str | None = None
    stream: bool = False
    status: int = 0
    reason: str = ""
    param: str | None = None  # the field of the request that is wrong
    client: str | None = None  # its address, where it was refused
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    queue: float | None = None
    prefill: float | None = None
    decode: float | None = None
    total: float = 0.0
    created: int = field(default_factory=lambda: int(time.time()))
    started: float = field(default_factory=time.monotonic)

    def add_times(self, answers: Sequence[RequestState]) -> None:
        """Take the times of the answers: to the first admission, to the first token, and to the last end."""
        times = [answer.timings for answer in answers]
        submitted = min(t.submitted for t in times)
        admitted = min((t.admitted for t in times if t.admitted is not None), default=None)
        first = min((t.first_token for t in times if t.first_token is not None), default=None)
        finished = max((t.finished for t in times if t.finished is not None), default=None)
        self.queue = _between(submitted, admitted)
        self.prefill = _between(admitted, first)
        self.decode = _between(first, finished)

    def refused(self, status: int, reason: str | None) -> None:
        """Write the line of a request that was not let in."""
        self.status, self.reason = status, reason or ""
        self.write()

    def write(self) -> None:
        """Write the line; the formatter of the log decides between words and JSON."""
        self.total = time.monotonic() - self.started
        figures = asdict(self)
        del figures["started"], figures["created"]
        figures = {name: round(v, 4) if isinstance(v, float) else v for name, v in figures.items() if v is not None}
        _log.info(" ".join(f"{name}={value}" for name, value in figures.items()), extra={"figures": figures})


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, and the figures of a request or the message."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line = {"time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"), "level": record.levelname.lower()}
        line |= {"logger": record.name}
        line |= getattr(record, "figures", None) or {"message": record.getMessage()}
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start
