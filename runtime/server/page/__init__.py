"""The page at /: plain HTML, CSS and JavaScript, shipped with the package; it asks nothing of any other server."""

from importlib.resources import files

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

_KINDS = {
    "index.html": "text/html; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    **dict.fromkeys(
        ("events.js", "key.js", "store.js", "list.js", "markdown.js", "turns.js", "chat.js", "status.js"),
        "text/javascript; charset=utf-8",
    ),
}
# What holds no secret: the page is shown without a key, and asks for one itself.
PAGE_PATHS = frozenset({"/", *(f"/page/{name}" for name in _KINDS)})
_HEADERS = {
    "content-security-policy": (
        "default-src 'self'; img-src data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    ),
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",
}


class PageRoutes:
    """The page and its files."""

    async def index(self, request: Request) -> Response:
        """GET /."""
        return _response("index.html")

    async def file(self, request: Request) -> Response:
        """GET /page/{name}."""
        name = request.path_params["name"]
        if name not in _KINDS:
            raise HTTPException(404)
        return _response(name)


def _response(name: str) -> Response:
    content = files(__package__).joinpath(name).read_bytes()
    return Response(content, headers={**_HEADERS, "content-type": _KINDS[name]})
