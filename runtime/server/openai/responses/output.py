"""The output of a response in the making: its items, and the events by which a stream tells of them."""

from collections.abc import Sequence
from typing import Any

from ....chat.formats.tool_calls import ToolCall

Event = dict[str, Any]


class ResponseOutput:
    """A message and the function calls after it.

    Args:
        response_id: hexadecimal digits that ids of items are made of.
    """

    def __init__(self, response_id: str) -> None:
        self._id = response_id
        self._text = ""
        self._logprobs: list[dict[str, Any]] = []
        self._untold = 0  # of them, those of tokens that have not become text yet
        self._message: dict[str, Any] | None = None  # begun, and this is its frame
        self.items: list[dict[str, Any]] = []  # those that are complete

    def add_text(self, text: str, logprobs: Sequence[dict[str, Any]]) -> list[Event]:
        """More text; nothing is told while there is none."""
        self._logprobs += logprobs
        self._untold += len(logprobs)
        if not text:
            return []
        self._text += text
        told = self._logprobs[len(self._logprobs) - self._untold :]
        self._untold = 0
        delta = {"type": "response.output_text.delta", "delta": text, "logprobs": told}
        return [*self._begin(), delta | self._place()]

    def finish(self, calls: Sequence[ToolCall], *, complete: bool) -> list[Event]:
        """The answer has ended: the message is closed, and the calls follow. Without both, the message is empty."""
        status = "completed" if complete else "incomplete"
        events = self._close(status) if self._message or not calls else []
        for call in calls:
            events += self._call(call)
        return events

    def _begin(self) -> list[Event]:
        if self._message is not None:
            return []
        self._message = {"id": f"msg_{self._id}", "type": "message", "role": "assistant"}
        item = self._message | {"status": "in_progress", "content": []}
        part = {"type": "response.content_part.added", "part": _part("", [])}
        return [{"type": "response.output_item.added", "output_index": 0, "item": item}, part | self._place()]

    def _close(self, status: str) -> list[Event]:
        begun = self._begin()
        part = _part(self._text, self._logprobs)
        item = (self._message or {}) | {"status": status, "content": [part]}
        self.items.append(item)
        done = {"type": "response.output_text.done", "text": self._text, "logprobs": self._logprobs}
        return [
            *begun,
            done | self._place(),
            {"type": "response.content_part.done", "part": part} | self._place(),
            {"type": "response.output_item.done", "output_index": 0, "item": item},
        ]

    def _call(self, call: ToolCall) -> list[Event]:
        index = len(self.items)
        item = {"id": f"fc_{self._id}{index:02d}", "type": "function_call", "call_id": call.id, "name": call.name}
        done = item | {"arguments": call.arguments, "status": "completed"}
        self.items.append(done)
        place = {"item_id": item["id"], "output_index": index}
        begun = item | {"arguments": "", "status": "in_progress"}
        arguments = {"arguments": call.arguments, "name": call.name}
        return [
            {"type": "response.output_item.added", "output_index": index, "item": begun},
            {"type": "response.function_call_arguments.delta", "delta": call.arguments} | place,
            {"type": "response.function_call_arguments.done"} | arguments | place,
            {"type": "response.output_item.done", "output_index": index, "item": done},
        ]

    def _place(self) -> dict[str, Any]:
        return {"item_id": f"msg_{self._id}", "output_index": 0, "content_index": 0}


def _part(text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}
