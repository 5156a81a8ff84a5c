"""Many requests run to their ends by a caller that waits, as many at a time as the queue takes."""

import queue
from collections.abc import Iterable, Iterator

from .client import Model, Request
from .engine.generation import OutputDelta, RequestState
from .errors import QueueFullError
from .outputs import Completion, combine


class Batch:
    """Feeds requests to an engine and collects their completions.

    Args:
        model: answers them.
        ahead: answers that may wait besides those that run: enough that no row is ever empty.
    """

    def __init__(self, model: Model, ahead: int | None = None) -> None:
        self._model = model
        self._most = model.options.max_concurrency + (ahead or model.options.max_concurrency)
        self._inbox: queue.SimpleQueue[tuple[RequestState, OutputDelta]] = queue.SimpleQueue()
        self._open: dict[int, _Group] = {}
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
                answer, delta = self._inbox.get()
                group = self._open[answer.sequence.id]
                if group.add(answer, delta):
                    yield group.place, group.completion()
        finally:  # Ctrl-C above all: nobody waits for these any more
            for group in self._open.values():
                group.cancel(self._model)

    def _feed(self, waiting: Iterator[tuple[int, Request]]) -> None:
        while self._next and len(self._open) < self._most:
            place, request = self._next
            answers = self._model.answers(request, lambda answer, delta: self._inbox.put((answer, delta)))
            try:
                self._model.engine.submit(answers)
            except QueueFullError:
                if not self._open:
                    raise
                return
            group = _Group(place, answers, self._open)
            self._open.update({answer.sequence.id: group for answer in answers})
            self._next = next(waiting, None)


class _Group:
    """The answers to one request, and what came of them so far."""

    def __init__(self, place: int, answers: list[RequestState], open_answers: "dict[int, _Group]") -> None:
        self.place = place
        self._answers = answers
        self._deltas: list[OutputDelta] = []
        self._open = open_answers

    def add(self, answer: RequestState, delta: OutputDelta) -> bool:
        """Take a delta; says whether it was the last of all answers."""
        self._deltas.append(delta)
        if delta.finish_reason is None:
            return False
        del self._open[answer.sequence.id]
        return all(other.sequence.id not in self._open for other in self._answers)

    def completion(self) -> Completion:
        """The first answer, with the others as its alternatives."""
        return combine(self._answers, self._deltas)

    def cancel(self, model: Model) -> None:
        """End what has not ended."""
        for answer in self._answers:
            model.engine.cancel(answer)
