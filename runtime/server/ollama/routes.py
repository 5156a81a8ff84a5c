"""GET /api/tags, /api/ps and /api/version, POST /api/show: what Ollama's clients ask about models."""

from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ...chat.template import TEMPLATE_NAME
from ..encoders.served import ServedEncoder
from ..openai.body import read_body
from ..openai.errors import ApiError, Disconnected, api_error
from ..openai.parse import parse
from ..state import AppState, ServedModel
from .builder import error_body
from .protocol import ShowFields
from .requests import model_name


class OllamaRoutes:
    """Routes that need no place in the engine."""

    def __init__(self, service: AppState) -> None:
        self._service = service

    async def version(self, _: Request) -> Response:
        """Clients compare it with versions of Ollama, whose API since 0.12 is what is spoken here."""
        return JSONResponse({"version": "0.12.0"})

    async def tags(self, _: Request) -> Response:
        """The models."""
        return JSONResponse({"models": [_listed(served) for served in self._all()]})

    def _all(self) -> list[ServedModel | ServedEncoder]:
        return [*self._service.models.values(), *self._service.encoders.values()]

    async def running(self, _: Request) -> Response:
        """The same models: all are loaded, for as long as the server runs."""
        size = [{"size_vram": 0, "context_length": served.longest} for served in self._all()]
        listed = [_listed(served) | more for served, more in zip(self._all(), size, strict=True)]
        return JSONResponse({"models": listed})

    async def show(self, request: Request) -> Response:
        """One model."""
        service = self._service
        try:
            limits = service.options.max_body, service.options.body_seconds
            with service.admission.reading() as arrived:
                body = await read_body(request.scope, request.receive, *limits, arrived)
            fields = parse(ShowFields, body)
            name = model_name(fields.model)
            return JSONResponse(_shown(service.encoders.get(name or "") or service.find(name)))
        except Disconnected:
            return Response(status_code=499)
        except Exception as error:  # noqa: BLE001  # the border of the request
            answer: ApiError = api_error(error)
            return JSONResponse(error_body(answer), answer.status, answer.headers)


def _listed(served: ServedModel | ServedEncoder) -> dict[str, Any]:
    manifest = served.model.bundle.manifest
    return {
        "name": served.name,
        "model": served.name,
        "modified_at": datetime.fromtimestamp(served.created, UTC).isoformat().replace("+00:00", "Z"),
        "size": sum(entry.size for entry in manifest.files.values()),
        "digest": manifest.files["weights.bin"].sha256 if "weights.bin" in manifest.files else "",
        "details": _details(served),
    }


def _details(served: ServedModel | ServedEncoder) -> dict[str, Any]:
    architecture, quantization = served.model.bundle.manifest.architecture, served.model.bundle.manifest.quantization
    return {
        "parent_model": "",
        "format": "onnx",
        "family": architecture.model_type,
        "families": [architecture.model_type],
        "parameter_size": f"{architecture.parameters / 1e6:.0f}M",
        "quantization_level": "float" if quantization is None else "quantized",
    }


def _shown(served: ServedModel | ServedEncoder) -> dict[str, Any]:
    bundle = served.model.bundle
    family = bundle.manifest.architecture.model_type
    template = bundle.path(TEMPLATE_NAME).read_text(encoding="utf-8") if bundle.has(TEMPLATE_NAME) else ""
    capabilities = ["embedding"]
    if isinstance(served, ServedModel):
        tools = ["tools"] if template and served.template.format.calls else []
        capabilities = ["completion", *tools]
    return {
        "modelfile": "",
        "parameters": "",
        "template": template,
        "details": _details(served),
        "capabilities": capabilities,
        "model_info": {
            "general.architecture": family,
            "general.parameter_count": bundle.manifest.architecture.parameters,
            f"{family}.context_length": served.longest,
        },
    }
