"""POST /v1/messages/count_tokens: how long the prompt of a message would be."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ..openai.chat_request import ChatRequest
from ..openai.parse import parse
from ..openai.prepared import prepared_answer
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
        return await prepared_answer(self._service, request, self._count, error_body)

    def _count(self, body: bytes) -> dict[str, Any]:
        fields = chat_fields(parse(CountFields, body, IGNORED, REFUSED))
        chat = ChatRequest.of(self._service, fields, RequestLog("", "/v1/messages/count_tokens"))
        return {"input_tokens": len(chat.request.ids)}
