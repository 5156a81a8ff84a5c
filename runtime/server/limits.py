"""How many requests may be inside the server, counted before anything is done for them; and how many begin at once."""

import asyncio
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from starlette.types import ASGIApp, Receive, Scope, Send

from .openai.errors import ApiError

AT_A_TIME = 4  # requests that begin in one round of the event loop: about a millisecond


class RequestLimiter:
    """Counts requests and the bytes of their bodies. Only the event loop uses it.

    Args:
        requests: most requests inside, running and waiting.
        body_bytes: most bytes of bodies that are inside or arrive; a token has at least about one byte, so this bounds
            tokens too.
    """

    def __init__(self, requests: int, body_bytes: int) -> None:
        self.limit = requests
        self._max_bytes = body_bytes
        self.inside = 0
        self._bytes = 0
        self._seconds = 1.0  # how long a request takes, smoothed

    def check(self) -> None:
        """Refuse early what could not enter anyway, before its body is read.

        Raises:
            ApiError: 429, with Retry-After.
        """
        if self.inside >= self.limit:
            raise self._full(f"{self.inside} requests are being answered or waiting, of {self.limit} that may")

    @contextmanager
    def reading(self) -> Iterator[Callable[[int], None]]:
        """Count the bytes of a body while it arrives, until the context ends; gives the function to tell of them.

        Raises:
            ApiError: 429, with Retry-After: before anything is read, or in the middle.
        """
        self.check()
        held = 0

        def arrived(count: int) -> None:
            nonlocal held
            self._require_bytes(count)
            self._bytes += count
            held += count

        try:
            yield arrived
        finally:
            self._bytes -= held

    @contextmanager
    def enter(self, body_bytes: int) -> Iterator[None]:
        """Count one request for as long as the context lasts.

        Raises:
            ApiError: 429, with Retry-After.
        """
        self.check()
        self._require_bytes(body_bytes)
        self.inside += 1
        self._bytes += body_bytes
        try:
            yield
        finally:
            self.inside -= 1
            self._bytes -= body_bytes

    def took(self, seconds: float) -> None:
        """A request was answered in this time."""
        self._seconds += 0.1 * (seconds - self._seconds)

    @property
    def retry_after(self) -> int:
        """Seconds after which it is worth trying again."""
        return max(1, min(30, round(self._seconds)))

    def _require_bytes(self, more: int) -> None:
        if self._bytes and self._bytes + more > self._max_bytes:  # a single larger one may come alone
            raise self._full(f"requests of {self._bytes} bytes are waiting, of {self._max_bytes} that may")

    def _full(self, what: str) -> ApiError:
        headers = {"retry-after": str(self.retry_after)}
        return ApiError(
            429, f"The queue is full: {what}. Try again later.", "rate_limit_error", code="queue_full", headers=headers
        )


class ConnectionThrottle:
    """Lets a few requests begin in each round of the event loop, and whoever asks for /health in between.

    Two hundred refusals in one round take a tenth of a second or more, and a probe needs several rounds: one in which
    its connection is accepted, one in which it is read, one in which it is answered.

    Args:
        app: what requests are for.
        passing: paths that need not wait.
    """

    def __init__(self, app: ASGIApp, passing: Collection[str]) -> None:
        self._app = app
        self._passing = frozenset(passing)
        self._gate = asyncio.Semaphore(AT_A_TIME)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Wait for a turn, then go on."""
        if scope["type"] == "http" and scope["path"] not in self._passing:
            async with self._gate:
                await asyncio.sleep(0)
        await self._app(scope, receive, send)
