"""Load benchmark: throughput of many users together, and latency for each."""

import queue
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import pairwise
from statistics import median

import numpy as np

from ..engine.handle import RequestHandle, TimedDelta
from ..errors import ExecutionError
from ..llm import LLM
from ..options import SamplingParams
from .graphs import interleave

_REQUESTS = 3  # of each user, one after the other
_STAGGER = 0.02  # seconds from one user's arrival to the next
_FIRST_TOKENS = 40  # of each reader, before the long prompt comes


@dataclass(frozen=True)
class Load:
    """Medians over repetitions for a number of users, each of whom asks again as soon as an answer has ended.

    Attributes:
        concurrency: users.
        tokens_per_second: generated tokens of all users while all are active; prefill takes part of the time.
        first_token_seconds: median time to first token, in seconds.
        median_token_seconds: median inter-token latency, in seconds: the time of a decode step.
        token_seconds: p95 inter-token latency, in seconds.
    """

    concurrency: int
    tokens_per_second: float
    first_token_seconds: float
    median_token_seconds: float
    token_seconds: float


@dataclass(frozen=True)
class Pace:
    """How a long prompt slows answers that are streamed meanwhile.

    Attributes:
        readers: streamed answers.
        prompt: tokens of the long prompt.
        idle_seconds: p95 inter-token latency without the long prompt, in answers of the same length.
        busy_seconds: p95 inter-token latency while the long prompt is computed.
        longest_seconds: longest gap between two tokens meanwhile.
        first_token_seconds: time to first token of the long prompt.
    """

    readers: int
    prompt: int
    idle_seconds: float
    busy_seconds: float
    longest_seconds: float
    first_token_seconds: float


@dataclass
class _Asked:
    """A request: when it was submitted, and when each of its tokens arrived."""

    user: int
    handle: RequestHandle | None = None
    submitted: float = 0.0
    moments: list[float] = field(default_factory=list)

    @property
    def running(self) -> bool:
        """Whether its answer has not ended."""
        return self.handle is not None and self.handle.answers[0].timings.finished is None

    @property
    def error(self) -> Exception | None:
        """Why its answer failed, if it did."""
        return self.handle.answers[0].error if self.handle is not None else None


class LoadBench:
    """Streamed requests with random prompts, all different, so that no cache can help.

    Args:
        llm: with at least one slot more than the highest concurrency, and nothing else to do.
        prompt: tokens of a prompt; each has between half as many and this many.
        tokens: generated tokens of a request; each has between half as many and this many.
    """

    def __init__(self, llm: LLM, *, prompt: int, tokens: int, seed: int = 0) -> None:
        self._model = llm.model
        self._prompt = prompt
        self._tokens = tokens
        self._rng = np.random.default_rng(seed)
        self._ended: queue.SimpleQueue[_Asked] = queue.SimpleQueue()
        self._first: queue.SimpleQueue[_Asked] = queue.SimpleQueue()

    def loads(
        self, concurrencies: Sequence[int], repeat: int, progress: Callable[[], None] | None = None
    ) -> list[Load]:
        """Measure each number of users, all numbers taking turns."""
        cases = [partial(self._load, count) for count in concurrencies]
        return [_middle(loads) for loads in interleave(cases, repeat, progress)]

    def pace(self, readers: int, prompt: int) -> Pace:
        """Measure `readers` answers while a prompt of `prompt` tokens is computed, and others of their length alone."""
        reading = self._begin(readers)
        arrived = time.perf_counter()
        long = self._ask(readers, prompt, 1)
        _take(self._first, 1)
        if not long.moments:
            raise ExecutionError(f"The prompt of {prompt} tokens failed: {long.error}")
        busy = _gaps(reading, arrived, long.moments[0])
        reached = max(sum(moment <= long.moments[0] for moment in one.moments) for one in reading)
        self._end(reading, readers + 1)
        reading = self._begin(readers)
        _wait_for(reading, max(reached, 2 * _FIRST_TOKENS))
        idle = [b - a for one in reading for a, b in pairwise(one.moments[_FIRST_TOKENS:])]
        self._end(reading, readers)
        took = long.moments[0] - arrived
        return Pace(readers, prompt, _percentile_95(idle), _percentile_95(busy), max(busy, default=0.0), took)

    def _begin(self, readers: int) -> list[_Asked]:
        """Start `readers` long answers and wait until each has produced some tokens."""
        reading = [self._ask(user, self._prompt, self._longest(self._prompt)) for user in range(readers)]
        _take(self._first, readers)
        _wait_for(reading, max(len(one.moments) for one in reading) + _FIRST_TOKENS)
        return reading

    def _end(self, reading: Iterable[_Asked], ends: int) -> None:
        self._cancel(reading)
        _take(self._ended, ends)

    def _load(self, count: int) -> Load:
        asked = []
        for user in range(count):
            asked.append(self._ask(user, *self._uneven()))
            time.sleep(_STAGGER)
        _take(self._first, count)
        started = time.perf_counter()
        left = dict.fromkeys(range(count), _REQUESTS - 1)
        while left[(ended := self._ended.get()).user]:
            left[ended.user] -= 1
            asked.append(self._ask(ended.user, *self._uneven()))
        finished = time.perf_counter()
        self._cancel(asked)
        _take(self._ended, count - 1)
        while not self._first.empty():
            self._first.get()
        tokens = sum(started <= moment <= finished for one in asked for moment in one.moments)
        waits = [one.moments[0] - one.submitted for one in asked if one.moments]
        gaps = _gaps(asked, started, finished)
        return Load(count, tokens / (finished - started), median(waits), median(gaps or [0.0]), _percentile_95(gaps))

    def _ask(self, user: int, prompt: int, tokens: int) -> _Asked:
        asked = _Asked(user)

        def observe(piece: TimedDelta) -> None:
            now, delta = time.perf_counter(), piece.delta
            begins = not asked.moments and bool(delta.token_ids or delta.finish_reason)
            asked.moments += [now] * len(delta.token_ids)
            if begins:
                self._first.put(asked)
            if delta.finish_reason is not None:
                self._ended.put(asked)

        vocab_size = self._model.bundle.manifest.architecture.vocab_size
        ids = self._rng.integers(0, vocab_size, prompt).tolist()
        params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
        request = self._model.request(ids, params)
        asked.submitted = time.perf_counter()
        asked.handle = self._model.submit(request, streamed=True, observer=observe)
        return asked

    def _uneven(self) -> tuple[int, int]:
        return self._between(self._prompt), self._between(self._tokens)

    def _between(self, most: int) -> int:
        return int(self._rng.integers(max(1, most // 2), most + 1))

    def _longest(self, prompt: int) -> int:
        return self._model.engine.longest - prompt

    def _cancel(self, asked: Iterable[_Asked]) -> None:
        for one in asked:
            if one.handle is not None:
                one.handle.close()


def _take(inbox: "queue.SimpleQueue[_Asked]", count: int) -> None:
    for _ in range(count):
        inbox.get()


def _wait_for(asked: Iterable[_Asked], tokens: int) -> None:
    for one in asked:
        while len(one.moments) < tokens and one.running:
            time.sleep(0.001)


def _gaps(asked: Iterable[_Asked], start: float, stop: float) -> list[float]:
    """Seconds between neighbouring tokens of which the second came in [start, stop]."""
    return [b - a for one in asked for a, b in pairwise(one.moments) if start <= b <= stop]


def _percentile_95(values: list[float]) -> float:
    return float(np.percentile(values, 95)) if values else 0.0


def _middle(loads: Sequence[Load]) -> Load:
    """The median of every figure."""
    names = [field.name for field in fields(Load) if field.name != "concurrency"]
    return Load(loads[0].concurrency, *(median(getattr(load, name) for load in loads) for name in names))
