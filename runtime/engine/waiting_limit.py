"""How much may wait: counted when a request is accepted, before anything else is done for it."""

import threading

from ..errors import QueueFullError


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
