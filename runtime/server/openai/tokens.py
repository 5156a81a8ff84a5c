"""POST /tokenize and /detokenize: what a prompt costs, and what ids mean."""

from contextlib import suppress
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ...errors import ChatTemplateError
from ..state import AppState, ServedModel
from .chat_request import template_messages
from .errors import ApiError, api_error
from .parse import parse
from .prepared import prepared_answer
from .protocol import DetokenizeFields, TokenizeFields


class TokenRoutes:
    """Both routes; they need the tokenizer only, and no place in the engine."""

    def __init__(self, service: AppState) -> None:
        self._service = service

    async def tokenize(self, request: Request) -> Response:
        """The ids of a prompt or of a rendered conversation."""
        return await prepared_answer(self._service, request, self._tokenize)

    async def detokenize(self, request: Request) -> Response:
        """The text of ids."""
        return await prepared_answer(self._service, request, self._detokenize)

    async def tokenizer_info(self, request: Request) -> Response:
        """GET /tokenizer_info: special tokens and chat template, as lm-eval asks for them."""
        try:
            served = self._service.find(request.query_params.get("model"))
            return JSONResponse(await self._service.prepare(lambda: _tokenizer_info(served)))
        except Exception as error:  # noqa: BLE001  # the border of the request
            return api_error(error).response()

    def _tokenize(self, body: bytes) -> dict[str, Any]:
        fields = parse(TokenizeFields, body)
        served = self._service.find(fields.model)
        tokenizer = served.model.tokenizer
        if (fields.prompt is None) == (fields.messages is None):
            raise ApiError(400, "Give a prompt or messages, one of them.", param="prompt")
        if fields.messages is not None:
            begin = fields.add_generation_prompt is not False
            messages = template_messages(fields.messages, served.template.source)
            text = served.template.render(messages, tools=fields.tools, add_generation_prompt=begin)
            ids = tokenizer.encode(text, add_special_tokens=bool(fields.add_special_tokens))
        else:
            ids = tokenizer.encode(fields.prompt or "", add_special_tokens=fields.add_special_tokens is not False)
        texts = [served.token_texts.text(i) for i in ids] if fields.return_token_strs else None
        return {"count": len(ids), "max_model_len": served.longest, "tokens": ids, "token_strs": texts}

    def _detokenize(self, body: bytes) -> dict[str, Any]:
        fields = parse(DetokenizeFields, body)
        tokenizer = self._service.find(fields.model).model.tokenizer
        return {"prompt": tokenizer.decode(fields.tokens, skip_special=False)}


def _tokenizer_info(served: ServedModel) -> dict[str, Any]:
    model = served.model
    ids = model.bundle.manifest.tokens
    tokens = {"bos_token": ids.bos, "eos_token": next(iter(ids.eos), None), "pad_token": ids.pad}
    info: dict[str, Any] = {name: None if i is None else model.tokenizer.token(i) for name, i in tokens.items()}
    with suppress(ChatTemplateError):
        info |= served.template.special_tokens | {"chat_template": served.template.source}
    return info | {"model_max_length": served.longest}
