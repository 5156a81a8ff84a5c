"""The waiting queue, its deadlines and its limit. A step's work does not depend on how many requests wait."""

import heapq
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress

from ...errors import QueueFullError
from .sequence import Sequence, Status


class WaitingQueue:
    """Sequences in arrival order; insertion and removal, from the middle too, take constant time."""

    def __init__(self) -> None:
        self._sequences: OrderedDict[int, Sequence] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences.values())

    @property
    def first(self) -> Sequence:
        """The next sequence to admit."""
        return next(iter(self._sequences.values()))

    def append(self, sequence: Sequence) -> None:
        """Add a sequence at the end."""
        self._sequences[sequence.id] = sequence

    def put_back(self, sequence: Sequence) -> None:
        """Put a preempted sequence at the front."""
        self._sequences[sequence.id] = sequence
        self._sequences.move_to_end(sequence.id, last=False)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence from any position."""
        del self._sequences[sequence.id]


class Deadlines:
    """Deadlines of sequences, earliest first."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Sequence]] = []

    def add(self, sequence: Sequence) -> None:
        """Watch a sequence, if it has a deadline."""
        if sequence.deadline is not None:
            heapq.heappush(self._heap, (sequence.deadline, sequence.id, sequence))

    def expired(self, now: float) -> list[Sequence]:
        """Unfinished sequences whose deadline has passed; each is returned once."""
        found = []
        while self._heap and (self._heap[0][0] <= now or self._heap[0][2].status is Status.FINISHED):
            sequence = heapq.heappop(self._heap)[2]
            if sequence.status is not Status.FINISHED:
                found.append(sequence)
        return found

    def next(self) -> float | None:
        """The earliest deadline of a sequence that has not ended, or None."""
        while self._heap and self._heap[0][2].status is Status.FINISHED:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None


class WaitingLimit:
    """Counts waiting requests and their prompt tokens; usable from any thread.

    Args:
        requests: most requests that may wait.
        tokens: most prompt tokens that may wait, or None. A single larger prompt may wait alone.
    """

    def __init__(self, requests: int, tokens: int | None = None) -> None:
        self._max_requests = requests
        self._max_tokens = tokens
        self._lock = threading.RLock()  # `enter` leaves a reservation
        self.requests = 0
        self.tokens = 0

    def reserve(self, requests: int) -> "Reservation":
        """Count `requests` whose prompts are not known yet, or refuse them.

        Raises:
            QueueFullError: a limit would be exceeded.
        """
        self.enter(requests, 0)
        return Reservation(self, requests)

    def enter(self, requests: int, tokens: int, reservation: "Reservation | None" = None) -> None:
        """Count `requests` that bring `tokens` prompt tokens in all, or refuse them together; a reservation is used up.

        Raises:
            QueueFullError: a limit would be exceeded.
        """
        with self._lock:
            if reservation is not None:
                reservation.give_up()
            if self.requests + requests > self._max_requests:
                raise QueueFullError(
                    f"{self.requests} requests are waiting, of {self._max_requests} that may. Try again later."
                )
            if self._max_tokens is not None and self.tokens and self.tokens + tokens > self._max_tokens:
                raise QueueFullError(
                    f"{self.tokens} prompt tokens are waiting; {tokens} more would exceed the limit of "
                    f"{self._max_tokens}. Try again later."
                )
            self.requests += requests
            self.tokens += tokens

    def leave(self, tokens: int, requests: int = 1) -> None:
        """Requests that were counted do not wait any more."""
        with self._lock:
            self.requests -= requests
            self.tokens -= tokens
            assert self.requests >= 0
            assert self.tokens >= 0


class Reservation:
    """Room in the queue for requests that are still being prepared; usable from any thread."""

    def __init__(self, limit: WaitingLimit, requests: int) -> None:
        self._limit = limit
        self._held = [requests]

    def give_up(self) -> None:
        """Give the room back; more calls do nothing."""
        with suppress(IndexError):  # `pop` is atomic: of two threads, one gives back
            self._limit.leave(0, self._held.pop())
