"""Batch: runs many requests to completion, as many at a time as the queue takes."""

import queue
from collections.abc import Iterable, Iterator
from functools import partial

from .client import Model, Request
from .engine.handle import RequestHandle, TimedDelta
from .errors import QueueFullError
from .outputs import Completion, combine


class Batch:
    """Feeds requests to an engine and collects their completions.

    Args:
        model: answers them.
        ahead: answers that may wait besides those that run, so that no slot is ever idle.
    """

    def __init__(self, model: Model, ahead: int | None = None) -> None:
        self._model = model
        self._most = model.options.max_concurrency + (ahead or model.options.max_concurrency)
        self._ended: queue.SimpleQueue[int] = queue.SimpleQueue()  # the place of a request, once for each answer
        self._open: dict[int, tuple[RequestHandle, int]] = {}  # place → its handle, and answers that have not ended
        self._next: tuple[int, Request] | None = None  # taken from the requests, not yet submitted

    def run(self, requests: Iterable[Request]) -> list[Completion]:
        """The completions in the order of the requests; an answer that failed has its `error` set."""
        done = dict(self.stream(requests))
        return [done[place] for place in sorted(done)]

    def stream(self, requests: Iterable[Request]) -> Iterator[tuple[int, Completion]]:
        """(place, completion) of each request as it ends. Leaving the iterator cancels what still runs.

        `requests` may be endless: each is taken when there is room for it.
        """
        waiting = enumerate(requests)
        self._next = next(waiting, None)
        try:
            while self._next or self._open:
                self._feed(waiting)
                place = self._ended.get()
                handle, left = self._open[place]
                self._open[place] = handle, left - 1
                if left == 1:
                    del self._open[place]
                    yield place, combine(handle.answers, handle.deltas())
        finally:  # Ctrl-C above all: nobody waits for these any more
            for handle, _ in self._open.values():
                handle.close()

    def _feed(self, waiting: Iterator[tuple[int, Request]]) -> None:
        while self._next and sum(left for _, left in self._open.values()) < self._most:
            place, request = self._next
            try:
                handle = self._model.submit(request, observer=partial(self._observe, place))
            except QueueFullError:
                if not self._open:
                    raise
                return
            self._open[place] = handle, len(handle.answers)
            self._next = next(waiting, None)

    def _observe(self, place: int, piece: TimedDelta) -> None:
        if piece.delta.finish_reason is not None:
            self._ended.put(place)
