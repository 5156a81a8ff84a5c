"""Which hosts the server answers for, and which web pages may use it: behind proxies, and against DNS rebinding."""

import ipaddress
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from starlette.datastructures import Headers
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from .openai.errors import ApiError

OPEN_PATHS = frozenset({"/health", "/ready"})  # what a probe without a key may ask; they answer one word
LOOPBACK_NAMES = ("localhost", "*.localhost", "127.0.0.1", "[::1]")
Refuse = Callable[[ApiError, Scope, Receive, Send], Awaitable[None]]


class TrustedProxies:
    """Addresses and networks whose `X-Forwarded-…` headers are believed.

    Args:
        entries: such as "10.0.0.1", "10.0.0.0/8", or "*" for all.

    Raises:
        ValueError: an entry is no address or network.
    """

    def __init__(self, entries: Sequence[str]) -> None:
        self._all = "*" in entries
        self._networks = [ipaddress.ip_network(entry, strict=False) for entry in entries if entry != "*"]

    def host(self, scope: Scope) -> str:
        """The host that the client asked for, as `name` or `name:port`."""
        headers = Headers(scope=scope)
        forwarded = headers.get("x-forwarded-host", "").partition(",")[0].strip()
        return forwarded if forwarded and self._trusts(scope) else headers.get("host", "")

    def address(self, scope: Scope) -> str:
        """The client's address, for the log."""
        peer = (scope.get("client") or ("unix socket",))[0]
        forwarded = Headers(scope=scope).get("x-forwarded-for", "").rpartition(",")[2].strip()
        return forwarded if forwarded and self._trusts(scope) else str(peer)

    def _trusts(self, scope: Scope) -> bool:
        client = scope.get("client")
        if self._all or client is None:  # only a proxy of this machine reaches a unix socket
            return True
        try:
            address = ipaddress.ip_address(client[0])
        except ValueError:
            return False
        mapped = getattr(address, "ipv4_mapped", None) or address
        return any(mapped in network for network in self._networks)


class RootPath:
    """Serves everything under a path as well, whether the proxy before it cuts that off or not."""

    def __init__(self, app: ASGIApp, root: str) -> None:
        self._app = app
        self._root = "/" + root.strip("/") if root.strip("/") else ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Cut the path off; send who asks for the path itself to where relative links work."""
        if scope["type"] == "http" and self._root and (scope["path"] + "/").startswith(self._root + "/"):
            if scope["path"] == self._root:
                await RedirectResponse(self._root + "/", 307)(scope, receive, send)
                return
            path = scope["path"][len(self._root) :]
            scope = {**scope, "path": path, "raw_path": path.encode()}
        await self._app(scope, receive, send)


class OriginGuard:
    """Refuses hosts that are not the server's, and web pages of other origins, except those named.

    A page that makes its own name point at this machine (DNS rebinding) is of the same origin to the browser, so the
    name itself must be known.

    Args:
        app: what requests are for.
        origins: web origins that may use it; "*" for all.
        hosts: names it answers for; "*.example.com" for all below one, "*" or none for all.
        proxies: whose headers are believed.
        refuse: answers those that may not pass.
    """

    def __init__(
        self, app: ASGIApp, origins: Sequence[str], hosts: Sequence[str], proxies: TrustedProxies, refuse: Refuse
    ) -> None:
        self._app = app
        self._origins = frozenset(origins)
        self._hosts = tuple(_plain_name(host) for host in hosts)
        self._proxies = proxies
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 403 to a foreign host or page; add the headers of CORS for a page that is named."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin, host = headers.get("origin"), self._proxies.host(scope)
        if scope["path"] not in OPEN_PATHS and not self._answers_for(host):
            await self._refuse(_foreign_host(host), scope, receive, send)
        elif origin is None or _same_origin(headers, origin, host):
            await self._app(scope, receive, send)
        elif origin in self._origins or "*" in self._origins:
            await _cors(self._app, "*" if "*" in self._origins else origin)(scope, receive, send)
        else:
            await self._refuse(_foreign_page(), scope, receive, send)

    def _answers_for(self, host: str) -> bool:
        name = _plain_name(host)
        return not self._hosts or any(_matches(name, known) for known in self._hosts)


def _same_origin(headers: Headers, origin: str, host: str) -> bool:
    """Whether the page is the server's own: as the browser says, which no page can forge; or as the names say."""
    site = headers.get("sec-fetch-site")
    return (
        site == "same-origin"
        if site is not None
        else _address(origin) == _address(f"{origin.partition('://')[0]}://{host}")
    )


def _address(origin: str) -> tuple[str, str, str]:
    """Scheme, name and port, whether the usual port is written or not."""
    scheme, _, host = origin.lower().partition("://")
    bare = _without_port(host)
    return scheme, _plain_name(host), host[len(bare) + 1 :] or {"http": "80", "https": "443"}.get(scheme, "")


def _plain_name(host: str) -> str:
    """The name as it is compared: lower case, no port, no dot at its end, an address of IPv6 in brackets and short."""
    name = _without_port(host).lower().rstrip(".")
    with suppress(ValueError):
        return f"[{ipaddress.IPv6Address(name.strip('[]'))}]"
    return name


def _matches(name: str, known: str) -> bool:
    return known in ("*", name) or (known.startswith("*.") and name.endswith(known[1:]))


def _without_port(host: str) -> str:
    before, colon, port = host.rpartition(":")
    return before if colon and port.isdigit() and (":" not in before or before.startswith("[")) else host


def _foreign_host(host: str) -> ApiError:
    return ApiError(
        403,
        f"This server does not answer for the host {host!r:.100}. Name it with --allowed-hosts, or, behind a proxy, "
        "give the proxy's address with --trusted-proxies.",
        "permission_error",
        code="host_not_allowed",
    )


def _foreign_page() -> ApiError:
    return ApiError(
        403,
        "Web pages of other origins may not use this server: see --cors-origin.",
        "permission_error",
        code="origin_not_allowed",
    )


def _cors(app: ASGIApp, origin: str) -> ASGIApp:
    from starlette.middleware.cors import CORSMiddleware

    return CORSMiddleware(
        app,
        allow_origins=[origin],
        allow_methods=["DELETE", "GET", "POST"],
        allow_headers=["*"],
        expose_headers=["x-request-id"],
    )
