"""One request for embeddings or scores, from its body to its answer."""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from ...encoder.model import Rows
from ..openai.body import read_body, while_connected
from ..openai.errors import ApiError
from ..openai.prepared import openai_body
from ..request_log import RequestLog
from ..state import AppState
from .served import ServedEncoder

MOST_TEXTS = 2048  # as OpenAI's


@dataclass(frozen=True)
class Work:
    """What a body asks for: texts of a model, and what to answer when their rows are there."""

    served: ServedEncoder
    texts: Sequence[Sequence[int]]
    answer: Callable[[Rows, RequestLog], dict[str, Any]]
    timeout: float | None = None

    @property
    def tokens(self) -> int:
        """Of all texts."""
        return sum(map(len, self.texts))


class EncoderEndpoint:
    """An ASGI application for one path.

    Args:
        service: of the server.
        understand: makes work of a body; runs in a thread.
        error_body: an error as the clients of this path expect it.
    """

    def __init__(
        self,
        service: AppState,
        understand: Callable[[AppState, bytes], Work],
        error_body: Callable[[ApiError], dict[str, Any]] = openai_body,
    ) -> None:
        self._service, self._understand, self._error_body = service, understand, error_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, and write it into the log and the metrics."""
        record = RequestLog(secrets.token_hex(12), scope["path"])
        headers = {"x-request-id": record.id}

        async def work() -> None:
            body = await self._answer(scope, receive, record)
            record.status, record.reason = 200, "stop"
            await JSONResponse(body, headers=headers)(scope, receive, send)

        async def refuse(error: ApiError) -> None:
            answer = JSONResponse(self._error_body(error), error.status, error.headers | headers)
            await answer(scope, receive, send)

        await self._service.recorded(record, work(), refuse)

    async def _answer(self, scope: Scope, receive: Receive, record: RequestLog) -> dict[str, Any]:
        service = self._service
        service.require_open()
        with service.admission.reading() as arrived:
            body = await read_body(scope, receive, service.options.max_body, service.options.body_seconds, arrived)
        with service.admission.enter(len(body)):
            return await while_connected(receive, self._work(body, record))

    async def _work(self, body: bytes, record: RequestLog) -> dict[str, Any]:
        service = self._service
        work = await service.prepare(lambda: self._understand(service, body))
        record.model, record.prompt_tokens = work.served.name, work.tokens
        if not work.texts:
            raise ApiError(400, "input: the list is empty.", param="input")
        seconds = service.timeout(work.timeout)
        try:
            async with asyncio.timeout(seconds):  # cancelling the future takes what is left out of the queue
                rows = await asyncio.wrap_future(work.served.encoder.submit(work.texts))
        except TimeoutError as error:
            raise ApiError(408, f"The request took longer than {seconds:g} seconds.", code="timeout") from error
        return await service.prepare(lambda: work.answer(rows, record))


def listed_input(value: Any, name: str = "input") -> list[Any]:
    """A text, texts, ids or lists of ids as a list of texts or lists of ids.

    Raises:
        ApiError: 400: an empty list, or too long a one.
    """
    if isinstance(value, str):
        return [value]
    if not value:
        raise ApiError(400, f"{name}: the list is empty.", param=name)
    listed = [list(value)] if isinstance(value[0], int) else list(value)
    if len(listed) > MOST_TEXTS:
        raise ApiError(400, f"{name} has {len(listed)} texts, and at most {MOST_TEXTS} are taken.", param=name)
    return listed
