"""Work on tensors, or on parts of them, on several cores: NumPy lets go of the interpreter while it computes."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import cache
from itertools import chain, islice
from typing import Any, TypeVar

from runtime.host.machine import usable_cores

_MOST_THREADS = 8  # beyond, they wait for memory

T = TypeVar("T")


def threads() -> int:
    """How many tasks are under way at once."""
    return min(_MOST_THREADS, usable_cores())


def parallel_map(tasks: Iterable[Callable[[], T]], at_once: int | None = None) -> Iterator[T]:
    """The results in order. As many tasks are under way as there are cores, or `at_once` where that is less, and one
    result more is in memory. A task must not call this itself: it would wait for a thread that waits for it.
    """
    most = threads() if at_once is None else min(at_once, threads())
    tasks = iter(tasks)
    few = list(islice(tasks, 2))
    if len(few) < 2:
        yield from (task() for task in few)
        return
    waiting: deque[Future[T]] = deque()
    with _one_thread_each():
        try:
            for task in chain(few, tasks):
                waiting.append(_pool().submit(task))
                if len(waiting) > most:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for left in waiting:  # a failure before them: nobody wants their results
                left.cancel()


def _one_thread_each() -> AbstractContextManager[object]:
    """Matrix products in the thread that asks for them: the threads of several at once would wait for each other."""
    limit: AbstractContextManager[object] = _libraries().limit(limits=1, user_api="blas")
    return limit


@cache
def _libraries() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()  # looks through all that is loaded: once


@cache
def _pool() -> ThreadPoolExecutor:
    """One for all tensors: to start threads for each took a tenth of the time of an export."""
    return ThreadPoolExecutor(threads(), thread_name_prefix="onnxlm-tensors")
