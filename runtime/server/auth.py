"""Who may use the server: API keys. A piece of ASGI before every route."""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Collection, Sequence
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from ..errors import OptionError
from .openai.errors import ApiError
from .origin import Refuse

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
    """Lets a request pass whose Authorization is `Bearer KEY`, or `Basic` with the key as password.

    Args:
        app: what requests are for.
        keys: that open everything; without any, everything but /metrics is open.
        metrics_keys: that open /metrics only.
        refuse: answers those that may not pass.
        open_paths: that need no key.
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: Sequence[str],
        metrics_keys: Sequence[str],
        refuse: Refuse,
        open_paths: Collection[str],
    ) -> None:
        self._app = app
        self._refuse = refuse
        self._open_paths = open_paths
        self._digests = [_digest(key) for key in keys]
        self._metrics_digests = [_digest(key) for key in (*keys, *metrics_keys)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 401 unless the request may pass."""
        if scope["type"] != "http" or scope["path"] in self._open_paths or self._opens(scope):
            await self._app(scope, receive, send)
            return
        refusal = ApiError(
            401,
            "An API key is needed: send it as `Authorization: Bearer KEY` or `x-api-key: KEY`.",
            "authentication_error",
            code="invalid_api_key",
            # Not Basic: a browser would ask for a name and a password, in front of the page that asks for the key.
            headers={"www-authenticate": 'Bearer realm="onnxlm"'},
        )
        await self._refuse(refusal, scope, receive, send)

    def _opens(self, scope: Scope) -> bool:
        known_digests = self._metrics_digests if scope["path"] == "/metrics" else self._digests
        if not self._digests and known_digests is self._digests:
            return True
        # All of them, always: how long it takes tells nothing.
        digests = [_digest(key) for key in _sent_keys(scope)]
        matches = [hmac.compare_digest(digest, known) for digest in digests for known in known_digests]
        return any(matches)


def _sent_keys(scope: Scope) -> list[str]:
    """The keys that a request brings: clients that know several servers send both headers, and one holds a dummy."""
    headers = Headers(scope=scope)
    return [key for key in (headers.get("x-api-key", "").strip(), _authorization(headers)) if key]


def _authorization(headers: Headers) -> str | None:
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
