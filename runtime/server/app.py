"""The ASGI application: every route, and what stands before them."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager, suppress

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ..client import Model
from ..encoder.model import Encoder
from .anthropic.builder import MessageBuilder
from .anthropic.builder import error_body as anthropic_error
from .anthropic.count import TokenCount
from .auth import KeyGuard
from .encoders import embeddings, ranking
from .encoders.endpoint import EncoderEndpoint
from .limits import ConnectionThrottle
from .ollama.builder import OllamaChatBuilder, generation
from .ollama.builder import error_body as ollama_error
from .ollama.routes import OllamaRoutes
from .openai.chat import ChatBuilder
from .openai.completions import CompletionBuilder
from .openai.endpoint import GenerationEndpoint
from .openai.errors import ApiError, http_error, server_error
from .openai.responses.builder import ResponsesBuilder
from .openai.responses.routes import ResponseRoutes
from .openai.tokens import TokenRoutes
from .options import ServerOptions
from .origin import OPEN_PATHS, OriginGuard, RootPath, TrustedProxies
from .page import PAGE_PATHS, PageRoutes
from .request_log import RequestLog
from .state import AppState
from .status import StatusRoutes


def create_app(
    models: Mapping[str, Model],
    options: ServerOptions | None = None,
    encoders: Mapping[str, Encoder] | None = None,
) -> Starlette:
    """An application that serves these models; `app.state.service` is what its routes share.

    Args:
        models: by the names that clients use. They stay the caller's, who closes them.
        options: of the server.
        encoders: models for embeddings and scores, by the names that clients use.

    Example:
        >>> app = create_app({"smol": Model("smol-int4", "auto", EngineOptions())})
    """
    service = AppState(models, options or ServerOptions(), encoders)
    routes = [
        *_page_routes(),
        *_openai_routes(service),
        *_anthropic_routes(service),
        *_ollama_routes(service),
        *_encoder_routes(service),
        *_status_routes(service),
    ]
    app = Starlette(
        routes=routes,
        middleware=_guards(service, {route.path for route in routes}),
        exception_handlers={HTTPException: http_error, Exception: server_error},
        lifespan=lambda _: _lifespan(service),
    )
    app.state.service = service
    return app


def _page_routes() -> list[Route]:
    page = PageRoutes()
    return [Route("/", page.index), Route("/page/{name}", page.file)]


def _openai_routes(service: AppState) -> list[Route]:
    stored = ResponseRoutes(service)
    return [
        Route("/v1/chat/completions", GenerationEndpoint(service, ChatBuilder.of), methods=["POST"]),
        Route("/v1/completions", GenerationEndpoint(service, CompletionBuilder.of), methods=["POST"]),
        Route("/v1/responses", GenerationEndpoint(service, ResponsesBuilder.of), methods=["POST"]),
        Route("/v1/responses/{id}", stored.response, methods=["GET"]),
        Route("/v1/responses/{id}", stored.delete, methods=["DELETE"]),
        Route("/v1/responses/{id}/input_items", stored.input_items),
    ]


def _anthropic_routes(service: AppState) -> list[Route]:
    return [
        Route("/v1/messages", GenerationEndpoint(service, MessageBuilder.of, anthropic_error), methods=["POST"]),
        Route("/v1/messages/count_tokens", TokenCount(service).answer, methods=["POST"]),
    ]


def _status_routes(service: AppState) -> list[Route]:
    status, tokens = StatusRoutes(service), TokenRoutes(service)
    return [
        Route("/v1/models", status.models),
        Route("/v1/models/{name:path}", status.model),
        Route("/tokenize", tokens.tokenize, methods=["POST"]),
        Route("/detokenize", tokens.detokenize, methods=["POST"]),
        Route("/health", status.health),
        Route("/ready", status.ready),
        Route("/tokenizer_info", tokens.tokenizer_info),
        Route("/version", status.version),
        Route("/metrics", status.metrics),
        Route("/status", status.status),
        Route("/openapi.json", status.openapi),
    ]


def _ollama_routes(service: AppState) -> list[Route]:
    ollama = OllamaRoutes(service)
    chat = GenerationEndpoint(service, OllamaChatBuilder.of_chat, ollama_error)
    return [
        Route("/api/chat", chat, methods=["POST"]),
        Route("/api/generate", GenerationEndpoint(service, generation, ollama_error), methods=["POST"]),
        Route("/api/tags", ollama.tags),
        Route("/api/ps", ollama.running),
        Route("/api/show", ollama.show, methods=["POST"]),
        Route("/api/version", ollama.version),
        Route("/api/embed", EncoderEndpoint(service, embeddings.ollama_embed, ollama_error), methods=["POST"]),
        Route(
            "/api/embeddings", EncoderEndpoint(service, embeddings.ollama_embeddings, ollama_error), methods=["POST"]
        ),
    ]


def _encoder_routes(service: AppState) -> list[Route]:
    """Rerankers' clients differ in whether they put /v1 in front."""
    table = {
        ("/v1/embeddings",): embeddings.embeddings,
        ("/rerank", "/v1/rerank", "/v2/rerank"): ranking.rerank,
        ("/score", "/v1/score"): ranking.score,
        ("/classify", "/v1/classify"): ranking.classify,
    }
    return [
        Route(path, EncoderEndpoint(service, understand), methods=["POST"])
        for paths, understand in table.items()
        for path in paths
    ]


def _guards(service: AppState, paths: Collection[str]) -> list[Middleware]:
    options = service.options
    proxies = TrustedProxies(options.trusted_proxies)

    async def refuse(error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"] if scope["path"] in paths else "other"  # strangers must not make labels
        service.metrics.answered(path, error.status)
        RequestLog(secrets.token_hex(12), path, client=proxies.address(scope)).refused(error.status, error.code)
        await error.response()(scope, receive, send)

    guards = [
        Middleware(RootPath, root=options.root_path),
        Middleware(ConnectionThrottle, passing=OPEN_PATHS),
        Middleware(
            OriginGuard, origins=options.cors_origins, hosts=options.allowed_hosts, proxies=proxies, refuse=refuse
        ),
    ]
    if options.api_keys or options.metrics_keys:
        keys = {"keys": options.api_keys, "metrics_keys": options.metrics_keys}
        guards.append(Middleware(KeyGuard, refuse=refuse, open_paths=OPEN_PATHS | PAGE_PATHS, **keys))
    return guards


@asynccontextmanager
async def _lifespan(service: AppState) -> AsyncIterator[None]:
    watch = asyncio.create_task(service.watch())
    try:
        yield
    finally:
        watch.cancel()
        with suppress(asyncio.CancelledError):
            await watch
        service.close()
