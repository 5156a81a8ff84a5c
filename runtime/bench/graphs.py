"""How fast a bundle's graphs run: every case once per round, rounds repeated, medians of them.

Interleaving makes slow seconds of a busy machine hit all cases alike, so that their ratios stay right.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal, TypeVar

import numpy as np

from ..cache.host import Array
from ..ort.binding import IntArray
from ..ort.runner_protocol import ModelRunner, states_of

T = TypeVar("T")
Timer = Callable[[], float]  # does the work of one case once; returns the seconds it took


@dataclass(frozen=True)
class Speed:
    """Median speed of one case. `context` is the prompt's length, or for decode the tokens that were there before."""

    phase: Literal["prefill", "decode"]
    batch: int
    context: int
    tokens_per_second: float
    slowest: float
    fastest: float


@dataclass(frozen=True)
class CacheSaving:
    """Tokens per second at one length, with the cache and with a full forward pass for every token."""

    context: int
    cached: float
    uncached: float

    @property
    def ratio(self) -> float:
        """Speed-up of the cache over a full forward pass."""
        return self.cached / self.uncached


class Bench:
    """Cases over one executor, whose slots it fills with random tokens.

    Args:
        executor: at least as many slots as the largest batch, at least `longest context + tokens` of capacity.
        tokens: decode steps per measurement.
        seed: of the token ids.
    """

    def __init__(self, executor: ModelRunner, *, tokens: int = 32, seed: int = 0) -> None:
        self._executor = executor
        self._tokens = tokens
        rng = np.random.default_rng(seed)
        self._states: dict[int, list[Array]] = {}
        self._ids: IntArray = rng.integers(0, executor.vocab_size, executor.capacity, dtype=np.int64)

    def speeds(
        self, prompts: Sequence[int], batches: Sequence[int], repeat: int, progress: Callable[[], None] | None = None
    ) -> list[Speed]:
        """Prefill of each prompt length, then decode of each batch size behind each prompt length."""
        cases: list[tuple[Literal["prefill", "decode"], int, int]] = [("prefill", 1, prompt) for prompt in prompts]
        cases += [("decode", batch, prompt) for batch in batches for prompt in prompts]
        self._fill(max(batches, default=1), prompts)
        timers = [
            self._prefill(prompt) if phase == "prefill" else self._decode(batch, prompt)
            for phase, batch, prompt in cases
        ]
        results = []
        for (phase, batch, prompt), seconds in zip(cases, interleave(timers, repeat, progress), strict=True):
            rates = [(prompt if phase == "prefill" else batch * self._tokens) / second for second in seconds]
            results.append(Speed(phase, batch, prompt, median(rates), min(rates), max(rates)))
        return results

    def cache_savings(
        self, contexts: Sequence[int], repeat: int, progress: Callable[[], None] | None = None
    ) -> list[CacheSaving]:
        """The next token of a text of each length, from the cache and by computing the whole text again."""
        self._fill(1, [*contexts, *(context - 1 for context in contexts)])
        timers = [timer for n in contexts for timer in (self._decode(1, n - 1), self._prefill(n))]
        seconds = [median(times) for times in interleave(timers, repeat, progress)]
        return [
            CacheSaving(n, self._tokens / cached, 1 / uncached)
            for n, cached, uncached in zip(contexts, seconds[::2], seconds[1::2], strict=True)
        ]

    def _fill(self, rows: int, lengths: Sequence[int]) -> None:
        """Prefill the longest text into all slots; recurrent state after each length is kept on the host."""
        states, done = states_of(self._executor), 0
        for length in sorted(set(lengths) - {0}) if states else [max(lengths)]:
            self._executor.prefill(0, done, self._ids[done:length])
            done = length
            if states:
                self._states[length] = states.read_state(0, length)
        for row in range(1, rows):
            self._executor.copy_slot(0, row, done)

    def _rewind(self, rows: int, length: int) -> None:
        """Restore the recurrent state after `length` tokens; keys and values need no restoring."""
        states = states_of(self._executor)
        for row in range(rows if states and length else 0):
            assert states is not None
            states.write_state(row, length, self._states[length])

    def _prefill(self, prompt: int) -> Timer:
        def run() -> float:
            started = time.perf_counter()
            self._executor.prefill(0, 0, self._ids[:prompt])
            return time.perf_counter() - started

        return run

    def _decode(self, batch: int, context: int) -> Timer:
        """Decode after `context` tokens; overwrites what earlier cases left there."""

        def run() -> float:
            ids = self._ids[:batch]
            lengths = np.full(batch, context, np.int64)
            self._rewind(batch, context)
            started = time.perf_counter()
            for step in range(self._tokens):
                self._executor.decode(ids, lengths + step)
            return time.perf_counter() - started

        return run


def interleave(
    cases: Sequence[Callable[[], T]], repeat: int, progress: Callable[[], None] | None = None
) -> list[list[T]]:
    """Run each case once to warm up, then all of them in turn, `repeat` times; what they found, case by case."""
    found: list[list[T]] = [[] for _ in cases]
    for _ in range(repeat + 1):
        for case, results in zip(cases, found, strict=True):
            results.append(case())
            if progress:
                progress()
    return [results[1:] for results in found]
