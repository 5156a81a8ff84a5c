"""Server-sent events: JSON objects, one an event, and comments against silence."""

import json
from typing import Any

from starlette.types import Send

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would collect the events
]


class LineStream:
    """Writes one response of JSON objects, one a line (application/x-ndjson)."""

    def __init__(self, send: Send, headers: dict[str, str]) -> None:
        self._send = send
        kind = (b"content-type", b"application/x-ndjson")
        self._headers = [kind, *_HEADERS[1:], *((name.encode(), value.encode()) for name, value in headers.items())]

    async def start(self) -> None:
        """Send status 200; from here on an error is an object."""
        await self._send({"type": "http.response.start", "status": 200, "headers": self._headers})

    async def data(self, *values: Any) -> None:
        """Send objects, each a line of its own."""
        if values:
            lines = (json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n" for value in values)
            await self._write("".join(lines), more=True)

    async def ping(self) -> None:
        """An empty line would be an error to clients: say nothing."""

    async def done(self) -> None:
        """End the stream."""
        await self._write("", more=False)

    async def _write(self, text: str, *, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": text.encode(), "more_body": more})


class EventStream:
    """Writes one response of events.

    Args:
        send: of ASGI.
        headers: of the response.
        named: say the `type` of each object as the event's name; otherwise the stream ends with [DONE].
    """

    def __init__(self, send: Send, headers: dict[str, str], *, named: bool = False) -> None:
        self._send = send
        self._named = named
        self._headers = [*_HEADERS, *((name.encode(), value.encode()) for name, value in headers.items())]

    async def start(self) -> None:
        """Send status 200; from here on an error is an event."""
        await self._send({"type": "http.response.start", "status": 200, "headers": self._headers})

    async def data(self, *values: Any) -> None:
        """Send objects, each an event of its own."""
        if values:
            await self._write("".join(map(self._event, values)), more=True)

    async def ping(self) -> None:
        """Send a comment, which clients skip."""
        await self._write(": ping\n\n", more=True)

    async def done(self) -> None:
        """End the stream."""
        await self._write("" if self._named else "data: [DONE]\n\n", more=False)

    def _event(self, value: Any) -> str:
        name = f"event: {value['type']}\n" if self._named else ""
        return f"{name}data: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}\n\n"

    async def _write(self, text: str, *, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": text.encode(), "more_body": more})
