"""Who may use the server: API keys, and web pages of other origins. Two pieces of ASGI before every route."""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from ..errors import OptionError
from .openai.errors import ApiError

OPEN_PATHS = frozenset({"/health", "/ready"})  # what a probe without a key may ask; they answer one word
_SHORTEST = 8


def read_keys(path: Path) -> tuple[str, ...]:
    """The keys of a file, one a line; lines that begin with # are comments.

    Raises:
        OptionError: it cannot be read, has no key, or one that is too short or not printable ASCII.
    """
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"{path}: cannot be read ({error}).") from error
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise OptionError(f"{path}: holds no key. Write one per line.")
    wrong = [place for place, key in enumerate(keys, 1) if not _usable(key)]
    if wrong:
        raise OptionError(
            f"{path}: key number {wrong[0]} must be at least {_SHORTEST} printable ASCII characters without blanks."
        )
    return keys


class KeyGuard:
    """Lets a request pass whose Authorization is `Bearer KEY`, or `Basic` with the key as password, for browsers."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._digests = [_digest(key) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 401 unless the request may pass."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or self._knows(_sent_key(scope)):
            await self._app(scope, receive, send)
            return
        refusal = ApiError(
            401,
            "An API key is needed: send it as `Authorization: Bearer KEY` or `x-api-key: KEY`.",
            "authentication_error",
            code="invalid_api_key",
            headers={"www-authenticate": 'Basic realm="onnxlm", charset="UTF-8"'},
        )
        await refusal.response()(scope, receive, send)

    def _knows(self, key: str | None) -> bool:
        digest = _digest(key or "")
        matches = [hmac.compare_digest(digest, known) for known in self._digests]  # all of them, always
        return key is not None and any(matches)


class OriginGuard:
    """Closed to web pages of other origins, except those named: they are refused, and their browsers told so."""

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        self._app = app
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 403 to a foreign page; add the headers of CORS for one that is named."""
        headers = Headers(scope=scope) if scope["type"] == "http" else Headers()
        origin = headers.get("origin")
        if origin is None or _same_origin(origin, headers.get("host", "")):
            await self._app(scope, receive, send)
        elif origin in self._origins or "*" in self._origins:
            await _cors(self._app, "*" if "*" in self._origins else origin)(scope, receive, send)
        else:
            refusal = ApiError(
                403, "Web pages of other origins may not use this server: see --cors-origin.", "permission_error"
            )
            await refusal.response()(scope, receive, send)


def _cors(app: ASGIApp, origin: str) -> ASGIApp:
    from starlette.middleware.cors import CORSMiddleware

    return CORSMiddleware(
        app,
        allow_origins=[origin],
        allow_methods=["DELETE", "GET", "POST"],
        allow_headers=["*"],
        expose_headers=["x-request-id"],
    )


def _same_origin(origin: str, host: str) -> bool:
    return origin.partition("://")[2] == host


def _sent_key(scope: Scope) -> str | None:
    headers = Headers(scope=scope)
    if own := headers.get("x-api-key"):  # as Anthropic's clients send it
        return own.strip()
    kind, _, value = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return value.strip()
    if kind.lower() != "basic":
        return None
    try:
        return base64.b64decode(value.strip(), validate=True).decode("utf-8").partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return None


def _usable(key: str) -> bool:
    return len(key) >= _SHORTEST and key.isascii() and key.isprintable() and " " not in key


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
