"""One request for tokens, from its body to its last byte, whatever happens on the way."""

import asyncio
import secrets
from collections.abc import Callable
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send

from ..request_log import RequestLog
from ..state import AppState
from .body import read_body, while_connected
from .builder import ResponseBuilder
from .errors import ApiError, Disconnected, api_error
from .stream import EventStream, LineStream

Understand = Callable[[AppState, bytes, RequestLog], ResponseBuilder]


class GenerationEndpoint:
    """An ASGI application for one path.

    Args:
        service: of the server.
        understand: makes a builder of a body; runs in a thread.
        error_body: an error as the clients of this path expect it.
    """

    def __init__(
        self,
        service: AppState,
        understand: Understand,
        error_body: Callable[[ApiError], dict[str, Any]] = lambda error: error.body,
    ) -> None:
        self._service = service
        self._understand = understand
        self._error_body = error_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, and write it into the log and the metrics."""
        record = RequestLog(secrets.token_hex(12), scope["path"])
        headers = {"x-request-id": record.id}
        send = _within(self._service.options.send_seconds, send)

        async def refuse(error: ApiError) -> None:
            answer = JSONResponse(self._error_body(error), error.status, error.headers | headers)
            await answer(scope, receive, send)

        await self._service.recorded(record, self._answer(scope, receive, send, record, headers), refuse)

    async def _answer(
        self, scope: Scope, receive: Receive, send: Send, record: RequestLog, headers: dict[str, str]
    ) -> None:
        service = self._service
        service.require_open()
        with service.admission.reading() as arrived:
            body = await read_body(scope, receive, service.options.max_body, service.options.body_seconds, arrived)
        with service.admission.enter(len(body)):

            async def work() -> None:
                job = await service.prepare(lambda: self._understand(service, body, record))
                job.generation.start()
                async with job.generation:
                    try:
                        await self._run(job, scope, receive, send, record, headers)
                    finally:
                        job.record_figures()

            await while_connected(receive, work())

    async def _run(
        self,
        job: ResponseBuilder,
        scope: Scope,
        receive: Receive,
        send: Send,
        record: RequestLog,
        headers: dict[str, str],
    ) -> None:
        if job.stream:
            await self._stream(job, job.open_stream(send, headers), record)
            return
        async for piece in job.generation.pieces():
            if piece is not None:
                job.events(piece)
        record.status, record.reason = 200, job.reason
        await JSONResponse(job.body(), headers=headers)(scope, receive, send)

    async def _stream(self, job: ResponseBuilder, events: EventStream | LineStream, record: RequestLog) -> None:
        record.status = 200
        await events.start()
        await events.data(*job.first_events())
        try:
            async for piece in job.generation.pieces(self._service.options.ping_seconds):
                if piece is None:
                    await events.ping()
                    continue
                await events.data(*job.events(piece))
                record.reason = piece.delta.finish_reason or record.reason
            await events.data(*job.last_events())
        except Disconnected:
            raise
        except Exception as error:  # noqa: BLE001  # the status is sent: an error is an event now
            answer: ApiError = api_error(error)
            record.reason = answer.code or answer.kind
            await events.data(*job.failure(answer))
        await events.done()


def _within(seconds: float, send: Send) -> Send:
    """`send`, which takes a client that reads nothing for one that has gone: it would hold its place for ever."""

    async def limited(message: Message) -> None:
        try:
            async with asyncio.timeout(seconds):
                await send(message)
        except TimeoutError as error:
            raise Disconnected from error

    return limited
