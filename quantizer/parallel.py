"""Work on tensors, or on parts of them, on several cores: NumPy lets go of the interpreter while it computes."""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from itertools import chain, islice
from typing import Any, TypeVar

_MOST_THREADS = 8  # beyond, they wait for memory

T = TypeVar("T")
_LOCAL = threading.local()  # `depth`: how many calls of parallel_map a thread works for


def threads() -> int:
    """How many tasks are under way at once."""
    return min(_MOST_THREADS, os.cpu_count() or 1)


def parallel_map(tasks: Iterable[Callable[[], T]], at_once: int | None = None) -> Iterator[T]:
    """Yield the results in order.

    As many tasks are under way as there are cores, or `at_once` where that is less, and one result more is in memory.
    A task may call this itself: its own tasks run in other threads than those that wait for them.
    """
    most = threads() if at_once is None else min(at_once, threads())
    tasks = iter(tasks)
    few = list(islice(tasks, 2))
    if len(few) < 2:
        yield from (task() for task in few)
        return
    pool = _pool(getattr(_LOCAL, "depth", 0))
    waiting: deque[Future[T]] = deque()
    with one_blas_thread():
        try:
            for task in chain(few, tasks):
                waiting.append(pool.submit(task))
                if len(waiting) > most:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for left in waiting:  # a failure before them: nobody wants their results
                left.cancel()


class _BlasLimit:
    """One limit for the whole process, however many threads ask for it: the first sets it, the last lifts it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._limiter: Any = None

    def enter(self) -> None:
        with self._lock:
            if self._users == 0:
                self._limiter = _libraries().limit(limits=1, user_api="blas")
            self._users += 1

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._limiter.restore_original_limits()


_BLAS_LIMIT = _BlasLimit()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Each matrix product in the thread that asks for it: the threads of several at once would wait for each other."""
    _BLAS_LIMIT.enter()
    try:
        yield
    finally:
        _BLAS_LIMIT.leave()


@cache
def _libraries() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()  # looks through all that is loaded: once


@cache
def _pool(depth: int) -> ThreadPoolExecutor:
    """One for all tensors: to start threads for each took a tenth of the time of an export."""

    def begin() -> None:
        _LOCAL.depth = depth + 1

    return ThreadPoolExecutor(threads(), thread_name_prefix="onnxlm-tensors", initializer=begin)
