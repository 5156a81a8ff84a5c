"""Answers that need a thread but no place in the engine: one path for routes that compute from a body."""

from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ..state import AppState
from .body import read_body
from .errors import ApiError, Disconnected, api_error


def openai_body(error: ApiError) -> dict[str, Any]:
    """An error as OpenAI's clients expect it."""
    return error.body


async def prepared_answer(
    service: AppState,
    request: Request,
    work: Callable[[bytes], dict[str, Any]],
    error_body: Callable[[ApiError], dict[str, Any]] = openai_body,
) -> Response:
    """What `work` makes of the body, in a thread; its errors in the words of `error_body`."""
    try:
        limits = service.options.max_body, service.options.body_seconds
        with service.admission.reading() as arrived:
            body = await read_body(request.scope, request.receive, *limits, arrived)
        with service.admission.enter(len(body)):
            return JSONResponse(await service.prepare(lambda: work(body)))
    except Disconnected:
        return Response(status_code=499)
    except Exception as error:  # noqa: BLE001  # the border of the request
        answer = api_error(error)
        return JSONResponse(error_body(answer), answer.status, answer.headers)
