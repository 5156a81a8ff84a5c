"""Work on a large tensor, part by part, on several cores: NumPy lets go of the interpreter while it computes."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from itertools import chain, islice
from typing import TypeVar

_MOST_THREADS = 8  # beyond, they wait for memory

T = TypeVar("T")


def threads() -> int:
    """How many tasks are under way at once."""
    return min(_MOST_THREADS, os.cpu_count() or 1)


def beside_each_other(tasks: Iterable[Callable[[], T]]) -> Iterator[T]:
    """The results in order. As many tasks are under way as there are cores, and one result more is in memory."""
    tasks = iter(tasks)
    few = list(islice(tasks, 2))
    if len(few) < 2:
        yield from (task() for task in few)
        return
    waiting: deque[Future[T]] = deque()
    try:
        for task in chain(few, tasks):
            waiting.append(_pool().submit(task))
            if len(waiting) > threads():
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for left in waiting:  # a failure before them: nobody wants their results
            left.cancel()


@cache
def _pool() -> ThreadPoolExecutor:
    """One for all tensors: to start threads for each took a tenth of the time of an export."""
    return ThreadPoolExecutor(threads(), thread_name_prefix="onnxlm-read")
