"""What waits: its order, its deadlines, and how much of it there may be. No step's work depends on how many wait."""

import heapq
import threading
from collections import OrderedDict
from collections.abc import Iterator

from ..errors import QueueFullError
from .request import Sequence, Status


class WaitingQueue:
    """Sequences in the order of their turn; putting in, taking out and removing from the middle take constant time."""

    def __init__(self) -> None:
        self._sequences: OrderedDict[int, Sequence] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences.values())

    @property
    def first(self) -> Sequence:
        """The next one to start."""
        return next(iter(self._sequences.values()))

    def append(self, sequence: Sequence) -> None:
        """Put one at the end."""
        self._sequences[sequence.id] = sequence

    def put_back(self, sequence: Sequence) -> None:
        """Put one at the front."""
        self._sequences[sequence.id] = sequence
        self._sequences.move_to_end(sequence.id, last=False)

    def remove(self, sequence: Sequence) -> None:
        """Take one out, wherever it stands."""
        del self._sequences[sequence.id]


class Deadlines:
    """When sequences are given up, earliest first."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Sequence]] = []

    def add(self, sequence: Sequence) -> None:
        """Watch a sequence, if it has a deadline."""
        if sequence.deadline is not None:
            heapq.heappush(self._heap, (sequence.deadline, sequence.id, sequence))

    def expired(self, now: float) -> list[Sequence]:
        """Sequences whose deadline has passed and that have not ended; each is returned once."""
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
        self._lock = threading.Lock()
        self.requests = 0
        self.tokens = 0

    def enter(self, requests: int, tokens: int) -> None:
        """Count `requests` that bring `tokens` prompt tokens in all, or refuse them together.

        Raises:
            QueueFullError: a limit would be exceeded.
        """
        with self._lock:
            if self.requests + requests > self._max_requests:
                raise QueueFullError(
                    f"{self.requests} requests are waiting, of {self._max_requests} that may. Try again later."
                )
            if self._max_tokens is not None and self.requests and self.tokens + tokens > self._max_tokens:
                raise QueueFullError(
                    f"{self.tokens} prompt tokens are waiting; {tokens} more would exceed the limit of "
                    f"{self._max_tokens}. Try again later."
                )
            self.requests += requests
            self.tokens += tokens

    def leave(self, tokens: int) -> None:
        """One request that was counted does not wait any more."""
        with self._lock:
            self.requests -= 1
            self.tokens -= tokens
            assert self.requests >= 0
            assert self.tokens >= 0
