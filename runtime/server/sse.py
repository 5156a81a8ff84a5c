"""Server-sent events: JSON objects, one an event, comments against silence, and [DONE] at the end."""

import json
from typing import Any

from starlette.types import Send

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would collect the events
]


class EventStream:
    """Writes one response of events."""

    def __init__(self, send: Send, headers: dict[str, str]) -> None:
        self._send = send
        self._headers = [*_HEADERS, *((name.encode(), value.encode()) for name, value in headers.items())]

    async def start(self) -> None:
        """Send status 200; from here on an error is an event."""
        await self._send({"type": "http.response.start", "status": 200, "headers": self._headers})

    async def data(self, *values: Any) -> None:
        """Send objects, each an event of its own."""
        if values:
            lines = (f"data: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}\n\n" for value in values)
            await self._write("".join(lines), more=True)

    async def ping(self) -> None:
        """Send a comment, which clients skip."""
        await self._write(": ping\n\n", more=True)

    async def done(self) -> None:
        """End the stream."""
        await self._write("data: [DONE]\n\n", more=False)

    async def _write(self, text: str, *, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": text.encode(), "more_body": more})
