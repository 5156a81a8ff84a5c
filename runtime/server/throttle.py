"""A crowd of requests comes in a few at a time, so that whoever asks for /health need not stand behind it."""

import asyncio
from collections.abc import Collection

from starlette.types import ASGIApp, Receive, Scope, Send

AT_A_TIME = 4  # about a millisecond


class ConnectionThrottle:
    """Lets a few requests begin in each round of the event loop; what else is ready has its turn in between.

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
