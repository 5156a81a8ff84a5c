"""Errors as OpenAI's clients expect them: {"error": {"message", "type", "param", "code"}} and a fitting status."""

import logging
from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ...errors import (
    DeviceLostError,
    DeviceMemoryError,
    ExecutionError,
    MissingDependencyError,
    OnnxlmError,
    PromptTooLongError,
    QueueFullError,
    RequestError,
)

_log = logging.getLogger("onnxlm.server")


class ApiError(OnnxlmError):
    """An answer that is an error.

    Args:
        status: of HTTP.
        message: what is wrong, and what to do.
        kind: OpenAI's `type`.
        code: OpenAI's `code`, for programs.
        param: the field of the request that is wrong.
        headers: of the response.
    """

    def __init__(
        self,
        status: int,
        message: str,
        kind: str = "invalid_request_error",
        *,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.code = code
        self.param = param
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        """The JSON of the answer."""
        return {"error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        """As an HTTP response."""
        return JSONResponse(self.body, self.status, self.headers)


class Disconnected(Exception):  # noqa: N818  # an event, not a fault
    """The client went away before its answer was complete."""


def api_error(error: Exception) -> ApiError:
    """Any exception as an answer; one that nobody expected is logged, and tells the client nothing of the inside."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, QueueFullError):
        return ApiError(429, str(error), "rate_limit_error", code="queue_full", headers={"retry-after": "1"})
    if isinstance(error, PromptTooLongError):
        return ApiError(400, str(error), code="context_length_exceeded")
    if isinstance(error, RequestError):
        return ApiError(400, str(error), param=_param(str(error)))
    if isinstance(error, MissingDependencyError):
        return ApiError(501, str(error), "server_error", code="not_installed")
    if isinstance(error, DeviceLostError):
        return ApiError(503, str(error), "server_error", code="device_lost", headers={"retry-after": "10"})
    if isinstance(error, DeviceMemoryError):
        return ApiError(503, str(error), "server_error", code="out_of_memory", headers={"retry-after": "1"})
    if isinstance(error, ExecutionError):
        return ApiError(500, str(error), "server_error", code="execution_failed")
    _log.error("a request failed", exc_info=error)
    return ApiError(500, "The server failed at this request; its log says why.", "server_error")


def stopping() -> ApiError:
    """The server takes nothing new."""
    message = "The server is shutting down. Try again: another one may take over."
    return ApiError(503, message, "server_error", code="shutting_down", headers={"retry-after": "5"})


async def http_error(request: Request, error: Exception) -> Response:
    """What the router raises: no such path, or not this method."""
    assert isinstance(error, HTTPException)
    words = {
        404: f"There is nothing at {request.method} {request.url.path:.200}. GET /openapi.json lists what there is.",
        405: f"{request.url.path:.200} does not take {request.method}.",
    }
    answer = ApiError(error.status_code, words.get(error.status_code, error.detail), headers=error.headers)
    return answer.response()


async def server_error(_: Request, error: Exception) -> Response:
    """What nobody caught."""
    return api_error(error).response()


def _param(message: str) -> str | None:
    """The field that a message of ours begins with, as in "top_p must be …" or "messages[0].role: …"."""
    if message.startswith("structured output:"):  # whichever field asked for it
        return None
    first = message.split(" ", 1)[0].rstrip(":.")
    return first if first.replace("_", "").split("[")[0].split(".")[0].islower() and len(first) < 80 else None
