"""Responses that were answered, kept in memory so that they can be read again and continued."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ApiError


@dataclass(frozen=True)
class StoredResponse:
    """One response.

    Attributes:
        body: as it was answered.
        input_items: the items of the request.
        messages: the conversation up to its end, without instructions, for the response that continues it.
        bytes: what all that takes as JSON, about.
    """

    body: Mapping[str, Any]
    input_items: Sequence[Mapping[str, Any]]
    messages: Sequence[dict[str, Any]]
    bytes: int


class ResponseStore:
    """Keeps the latest responses that fit into a number of bytes; a restart forgets them all.

    The event loop alone puts and deletes; any thread may `get`, which is one look-up in a dictionary.

    Args:
        most_bytes: of all of them; 0 keeps nothing.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._kept: OrderedDict[str, StoredResponse] = OrderedDict()
        self.bytes = 0

    @property
    def keeps(self) -> bool:
        """Whether anything is kept at all."""
        return self._most_bytes > 0

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, response: StoredResponse) -> None:
        """Keep it if it fits at all, and drop the oldest until it does."""
        if response.bytes > self._most_bytes:
            return
        self._kept[response.body["id"]] = response
        self.bytes += response.bytes
        while self.bytes > self._most_bytes:
            self.bytes -= self._kept.popitem(last=False)[1].bytes

    def get(self, response_id: str, param: str | None = None) -> StoredResponse:
        """The response of that id.

        Args:
            response_id: its id.
            param: the field that named it, for the error.

        Raises:
            ApiError: 404.
        """
        found = self._kept.get(response_id)
        if found is None:
            raise ApiError(
                404,
                f"There is no response {response_id!r:.80} here: it was not stored, has been deleted or made room for "
                "later ones, or the server has started again since. Send the whole conversation as `input`.",
                code="previous_response_not_found" if param else "response_not_found",
                param=param,
            )
        return found

    def delete(self, response_id: str) -> None:
        """Forget it.

        Raises:
            ApiError: 404.
        """
        self.get(response_id)
        self.bytes -= self._kept.pop(response_id).bytes
