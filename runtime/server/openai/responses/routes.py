"""GET and DELETE /v1/responses/{id}: responses that were stored."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ...state import AppState
from ..errors import ApiError, api_error

_MOST_ITEMS = 100


class ResponseRoutes:
    """What can be done with a response after it was answered."""

    def __init__(self, service: AppState) -> None:
        self._store = service.responses

    async def response(self, request: Request) -> Response:
        """GET /v1/responses/{id}: the response as it was answered."""
        return self._answer(request, {"include", "stream"}, self._body)

    async def delete(self, request: Request) -> Response:
        """DELETE /v1/responses/{id}: forget it."""
        return self._answer(request, set(), self._delete)

    async def input_items(self, request: Request) -> Response:
        """GET /v1/responses/{id}/input_items: the request's items, the last one first."""
        return self._answer(request, {"include", "order", "limit", "after"}, self._items)

    def _answer(
        self, request: Request, known: set[str], work: Callable[[str, Mapping[str, str]], Mapping[str, Any]]
    ) -> Response:
        try:
            unknown = sorted(request.query_params.keys() - known - {"include[]"})
            if unknown:
                name = unknown[0][:80]
                raise ApiError(400, f"{name}: unknown; known are {', '.join(sorted(known)) or 'none'}.", param=name)
            return JSONResponse(work(request.path_params["id"], request.query_params))
        except Exception as error:  # noqa: BLE001  # the border of the request
            return api_error(error).response()

    def _body(self, response_id: str, query: Mapping[str, str]) -> Mapping[str, Any]:
        if query.get("stream", "false").lower() != "false":
            raise ApiError(400, "stream: a stored response is complete; leave it out.", param="stream")
        return self._store.get(response_id).body

    def _delete(self, response_id: str, _: Mapping[str, str]) -> Mapping[str, Any]:
        self._store.delete(response_id)
        return {"id": response_id, "object": "response", "deleted": True}

    def _items(self, response_id: str, query: Mapping[str, str]) -> Mapping[str, Any]:
        items = list(self._store.get(response_id).input_items)
        if _one_of(query, "order", "desc", ("asc", "desc")) == "desc":
            items.reverse()
        rest = _after(items, query.get("after"))
        shown = rest[: _limit(query.get("limit", "20"))]
        ends = [shown[0]["id"], shown[-1]["id"]] if shown else [None, None]
        more = len(shown) < len(rest)
        return {"object": "list", "data": shown, "first_id": ends[0], "last_id": ends[1], "has_more": more}


def _one_of(query: Mapping[str, str], name: str, default: str, accepted: Sequence[str]) -> str:
    value = query.get(name, default)
    if value not in accepted:
        raise ApiError(400, f"{name} must be {' or '.join(accepted)}, got {value!r:.40}.", param=name)
    return value


def _limit(value: str) -> int:
    if not (value.isascii() and value.isdecimal() and 1 <= int(value[:4]) <= _MOST_ITEMS):
        raise ApiError(400, f"limit must be from 1 to {_MOST_ITEMS}, got {value!r:.40}.", param="limit")
    return int(value)


def _after(items: list[Mapping[str, Any]], item_id: str | None) -> list[Mapping[str, Any]]:
    if item_id is None:
        return items
    places = [place for place, item in enumerate(items) if item["id"] == item_id]
    if not places:
        raise ApiError(400, f"after: there is no item {item_id!r:.80}.", param="after")
    return items[places[0] + 1 :]
