"""POST /v1/messages/count_tokens: how long the prompt of a message would be."""

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ..openai.body import read_body
from ..openai.chat_request import ChatRequest
from ..openai.errors import Disconnected, api_error
from ..openai.protocol import parse
from ..request_log import RequestLog
from ..state import AppState
from .builder import error_body
from .messages import chat_fields
from .protocol import IGNORED, REFUSED, CountFields


class TokenCount:
    """Renders and counts; it needs no place in the engine."""

    def __init__(self, service: AppState) -> None:
        self._service = service

    async def answer(self, request: Request) -> Response:
        """{"input_tokens": …}"""
        service = self._service
        try:
            limits = service.options.max_body, service.options.body_seconds
            with service.admission.reading() as arrived:
                body = await read_body(request.scope, request.receive, *limits, arrived)
            with service.admission.enter(len(body)):
                return JSONResponse(await service.prepare(lambda: self._count(body)))
        except Disconnected:
            return Response(status_code=499)
        except Exception as error:  # noqa: BLE001  # the border of the request
            answer = api_error(error)
            return JSONResponse(error_body(answer), answer.status, answer.headers)

    def _count(self, body: bytes) -> dict[str, Any]:
        fields = chat_fields(parse(CountFields, body, IGNORED, REFUSED))
        chat = ChatRequest.of(self._service, fields, RequestLog("", "/v1/messages/count_tokens"))
        return {"input_tokens": len(chat.request.ids)}
