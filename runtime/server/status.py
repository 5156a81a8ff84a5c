"""What a server says about itself: models, health, readiness, version, metrics, and the figures of the page."""

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from ..host.packages import own_version
from .encoders.served import ServedEncoder
from .metrics import CONTENT_TYPE, kv_usage
from .openai.errors import api_error
from .openai.schema import document
from .state import AppState, ServedModel


class StatusRoutes:
    """All of them; none waits for an engine."""

    def __init__(self, service: AppState) -> None:
        self._service = service

    async def models(self, request: Request) -> Response:
        """GET /v1/models."""
        listed: list[ServedModel | ServedEncoder] = [*self._service.models.values(), *self._service.encoders.values()]
        return JSONResponse({"object": "list", "data": [_model(served) for served in listed]})

    async def model(self, request: Request) -> Response:
        """GET /v1/models/{name}."""
        try:
            name = request.path_params["name"]
            return JSONResponse(_model(self._service.encoders.get(name) or self._service.find(name)))
        except Exception as error:  # noqa: BLE001  # the border of the request
            return api_error(error).response()

    async def health(self, request: Request) -> Response:
        """GET /health: 503 if an engine has stopped or stands still; restart the server then."""
        faults = self._service.faults()
        return JSONResponse({"status": "failing" if faults else "ok"}, 503 if faults else 200)

    async def ready(self, request: Request) -> Response:
        """GET /ready: 503 while new requests should go elsewhere."""
        ready = not (self._service.draining or self._service.faults())
        return JSONResponse({"status": "ready" if ready else "not ready"}, 200 if ready else 503)

    async def version(self, request: Request) -> Response:
        """GET /version."""
        return JSONResponse({"version": own_version()})

    async def metrics(self, request: Request) -> Response:
        """GET /metrics, for Prometheus."""
        return PlainTextResponse(self._service.metrics.text(), headers={"content-type": CONTENT_TYPE})

    async def status(self, request: Request) -> Response:
        """GET /status: the figures of this moment, for the page."""
        return JSONResponse(
            {
                "version": own_version(),
                "draining": self._service.draining,
                "faults": self._service.faults(),
                "inside": self._service.admission.inside,
                "limit": self._service.admission.limit,
                "models": [_figures(served) for served in self._service.models.values()],
            }
        )

    async def openapi(self, request: Request) -> Response:
        """GET /openapi.json."""
        return JSONResponse(document(keys=bool(self._service.options.api_keys)))


def _model(served: ServedModel | ServedEncoder) -> dict[str, Any]:
    return {
        "id": served.name,
        "object": "model",
        "created": served.created,
        "owned_by": "onnxlm",
        "max_model_len": served.longest,
    }


def _figures(served: ServedModel) -> dict[str, Any]:
    stats = served.model.engine.stats()
    return {
        "name": served.name,
        "context": served.longest,
        "rows": served.model.options.max_concurrency,
        "running": stats.running,
        "waiting": stats.waiting,
        "kv_used": kv_usage(stats),
        "kv_bytes": stats.kv_bytes,
        "generated_tokens": stats.generated_tokens,
        "prompt_tokens": stats.prompt_tokens,
        "cached_tokens": stats.cached_tokens,
        "finished": stats.finished,
    }
