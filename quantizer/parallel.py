"""Work on tensors, or on parts of them, on several cores: NumPy lets go of the interpreter while it computes."""

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from functools import cache
from itertools import chain, islice
from queue import SimpleQueue
from typing import Any, TypeVar

from runtime.host.machine import usable_cores

_MOST_THREADS = 8  # a guess: no machine with more cores was measured; rounding is bound by memory long before

T = TypeVar("T")
_LOCAL = threading.local()  # `depth`: how many calls of parallel_map a thread works for


def threads() -> int:
    """Threads that work on tensors: one a core, at most 8."""
    return min(_MOST_THREADS, usable_cores())


def parallel_map(tasks: Iterable[Callable[[], T]], at_once: int | None = None) -> Iterator[T]:
    """Yield the results in order.

    At most `at_once` + 1 tasks are running or done and not yet yielded, by default `threads()` + 1. Fewer than two
    tasks run in the thread of the caller. A task may call this itself: its own tasks run in other threads.
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
            # A failure before them: nobody wants their results, but no thread may be cut off within a product. Where
            # the end of the interpreter closes this generator, the threads have stopped and would never answer.
            if not sys.is_finalizing():
                wait([left for left in waiting if not left.cancel()])


class _BlasLimit:
    """One limit for the whole process: the first thread that enters sets it, the last that leaves lifts it."""

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
    """Run each matrix product in the thread that asks for it, so that products of several tasks do not share cores."""
    _BLAS_LIMIT.enter()
    try:
        yield
    finally:
        _BLAS_LIMIT.leave()


@cache
def _libraries() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()  # looks through all that is loaded: once


class _Pool:
    """Threads that the end of the process does not wait for.

    concurrent.futures' own pool does: Ctrl-C while one of its threads starts leaves one that nobody tells to end.
    """

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._tasks: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        self._started = 0

    def submit(self, task: Callable[[], T]) -> "Future[T]":
        """Have a task done; its result, or what it raises, is the future's."""
        if self._started < threads():
            threading.Thread(target=self._work, name=f"onnxlm-tensors_{self._started}", daemon=True).start()
            self._started += 1
        future: Future[T] = Future()
        self._tasks.put((future, task))
        return future

    def _work(self) -> None:
        _LOCAL.depth = self._depth + 1
        while True:
            self._do(*self._tasks.get())

    def _do(self, future: "Future[Any]", task: Callable[[], Any]) -> None:
        """In a function of its own, so that an idle thread keeps no result alive."""
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(task())
        except BaseException as error:  # noqa: BLE001  # whoever waits for the result gets it
            future.set_exception(error)


@cache
def _pool(depth: int) -> _Pool:
    """One for all calls of a depth: starting threads for each tensor took a tenth of an export of SmolLM2-135M."""
    return _Pool(depth)
