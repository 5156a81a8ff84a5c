"""Whether an engine lives: it has stopped, stands still although it has work, or fails at everything."""

import time
from collections.abc import Callable

from ..engine.engine import EngineStats

FAILURES = 5  # answers in a row that failed, from which on it is the engine's fault and not the requests'


class Heartbeat:
    """Watches one engine; `observe` is called now and then, and whenever somebody asks.

    An idle engine waits and its heartbeat stands still, so that time counts only from the first look at which there
    was work.

    Args:
        stats: looks at the engine.
        stall_seconds: how long it may stand still with work.
        clock: seconds, monotonic.
    """

    def __init__(
        self, stats: Callable[[], EngineStats], stall_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stats = stats
        self._stall_seconds = stall_seconds
        self._clock = clock
        self._seen: float | None = None  # the heartbeat that it stood at
        self._since = 0.0

    def observe(self) -> str | None:
        """What is wrong with the engine, or None."""
        stats = self._stats()
        if stats.lost is not None:
            return stats.lost
        if not stats.alive:
            return "the engine has stopped"
        if stats.failures_in_a_row >= FAILURES:
            return f"the last {stats.failures_in_a_row} requests failed"
        if not (stats.running or stats.waiting):
            self._seen = None
            return None
        now = self._clock()
        if stats.heartbeat != self._seen:
            self._seen, self._since = stats.heartbeat, now
        stood = now - self._since
        return f"the engine has stood still for {stood:.0f} seconds" if stood >= self._stall_seconds else None
