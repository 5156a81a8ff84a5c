"""Waiting for an engine in tests, with a bound."""

import time
from collections.abc import Callable

from runtime import LLM


def idle(llm: LLM) -> bool:
    """Nothing runs and nothing waits."""
    stats = llm.model.engine.stats()
    return not (stats.running or stats.waiting)


def wait_until(condition: Callable[[], bool], seconds: float = 30) -> None:
    """Return as soon as the condition holds; it must within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.001)
