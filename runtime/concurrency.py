"""What many requests at once get from the engine: together, and each."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from .benchmark import interleave
from .llm import LLM
from .options import SamplingParams


@dataclass(frozen=True)
class Load:
    """Medians for a number of simultaneous requests, prompts included.

    `tokens_per_second` counts generated tokens of all requests, `first_token_seconds` is the median request's.
    """

    concurrency: int
    tokens_per_second: float
    first_token_seconds: float


class LoadBench:
    """Requests of random prompts, each different, so that nothing is found in a cache.

    Args:
        llm: with at least as many rows as the highest concurrency.
        prompt: tokens of each prompt.
        tokens: generated tokens of each request.
    """

    def __init__(self, llm: LLM, *, prompt: int, tokens: int, seed: int = 0) -> None:
        self._llm = llm
        self._prompt = prompt
        self._params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
        self._rng = np.random.default_rng(seed)
        self._waits: dict[int, list[float]] = {}

    def loads(
        self, concurrencies: Sequence[int], repeat: int, progress: Callable[[], None] | None = None
    ) -> list[Load]:
        """Measure each number of simultaneous requests, all numbers taking turns."""
        seconds = interleave([self._timer(count) for count in concurrencies], repeat, progress)
        return [
            Load(count, median(count * self._params.max_tokens / t for t in times), median(self._waits[count]))
            for count, times in zip(concurrencies, seconds, strict=True)
        ]

    def _timer(self, count: int) -> Callable[[], float]:
        waits = self._waits.setdefault(count, [])

        def run() -> float:
            vocab_size = self._llm.model.bundle.manifest.architecture.vocab_size
            prompts: list[list[int]] = self._rng.integers(0, vocab_size, (count, self._prompt)).tolist()
            started = time.perf_counter()
            completions = self._llm.generate(prompts, self._params)
            elapsed = time.perf_counter() - started
            waits.extend(completion.timings.time_to_first_token or 0.0 for completion in completions)
            return elapsed

        return run
