"""Reading a request: its body within limits, and noticing that the client has gone."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from starlette.datastructures import Headers
from starlette.types import Receive, Scope

from .errors import ApiError, Disconnected

Result = TypeVar("Result")
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
        ApiError: 413 too large, 408 too slow, 415 not JSON; or what `arrived` raises.
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


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
