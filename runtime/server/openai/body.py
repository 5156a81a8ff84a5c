"""Reading a request: its body within limits, and noticing that the client has gone."""

import asyncio
import zlib
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from starlette.datastructures import Headers
from starlette.types import Receive, Scope

from .errors import ApiError, Disconnected

Result = TypeVar("Result")
_WINDOW_BITS = {"gzip": 31, "x-gzip": 31, "deflate": 15}  # as zlib names the two formats
_DISCARDED = 64 << 20  # bytes of a body that is too large, read so that the client hears the answer


async def read_body(
    scope: Scope, receive: Receive, limit: int, seconds: float, arrived: Callable[[int], None]
) -> bytes:
    """The body of a request that must be JSON.

    Args:
        scope, receive: of ASGI.
        limit: bytes.
        seconds: how long the client may take.
        arrived: told of bytes that are kept; it may refuse them.

    Raises:
        ApiError: 413 too large, 408 too slow, 415 not JSON or compressed in an unknown way; or what `arrived` raises.
        Disconnected: the client went away.
    """
    headers = Headers(scope=scope)
    try:
        async with asyncio.timeout(seconds):
            body = await _read(receive, limit, arrived)
    except TimeoutError as error:
        raise ApiError(
            408, f"The request's body did not arrive within {seconds:g} seconds.", headers={"connection": "close"}
        ) from error
    if body is None:
        raise ApiError(
            413, f"The request's body is larger than {limit} bytes. Send less.", headers={"connection": "close"}
        )
    body = _decompressed(body, headers.get("content-encoding", "").strip().lower(), limit, arrived)
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # a web page of another origin cannot send JSON without asking first
        raise ApiError(415, f"The body must be JSON, with content-type: application/json; got {kind!r:.80}.")
    return body


async def while_connected(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """Do the work unless the client disconnects first; then it is cancelled.

    Raises:
        Disconnected: the client went away.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Disconnected
        return task.result()
    finally:
        gone.cancel()
        task.cancel()
        await asyncio.wait({task, gone})


async def _read(receive: Receive, limit: int, arrived: Callable[[int], None]) -> bytes | None:
    chunks: list[bytes] = []
    size, more = 0, True
    while more and size <= limit + _DISCARDED:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        chunk = message.get("body", b"")
        size += len(chunk)
        if size <= limit:
            arrived(len(chunk))
            chunks.append(chunk)
        else:
            chunks.clear()
        more = message.get("more_body", False)
    return b"".join(chunks) if size <= limit else None


def _decompressed(body: bytes, coding: str, limit: int, arrived: Callable[[int], None]) -> bytes:
    """The decompressed body; at most `limit` bytes are unpacked."""
    if coding in ("", "identity"):
        return body
    if coding not in _WINDOW_BITS:
        raise ApiError(415, f"content-encoding {coding!r:.60} is not understood: send the body plain, or with gzip.")
    unpacker = zlib.decompressobj(_WINDOW_BITS[coding])
    try:
        text = unpacker.decompress(body, limit + 1)
    except zlib.error as error:
        raise ApiError(400, f"The body is not {coding}: {error}.") from error
    if len(text) > limit:
        raise ApiError(413, f"The request's body is larger than {limit} bytes. Send less.")
    if not unpacker.eof:
        raise ApiError(400, f"The body's {coding} data ends too early.")
    arrived(max(0, len(text) - len(body)))
    return text


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
