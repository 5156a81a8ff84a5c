"""The output of a response in the making: its items, and the events by which a stream tells of them."""

from collections.abc import Sequence
from typing import Any

from ....chat.formats.format import ToolCall

Event = dict[str, Any]


class ResponseOutput:
    """Thoughts, a message, and function calls, in the order in which they come.

    Args:
        response_id: hexadecimal digits that ids of items are made of.
    """

    def __init__(self, response_id: str) -> None:
        self._id = response_id
        self._text = ""
        self._thoughts = ""
        self._logprobs: list[dict[str, Any]] = []
        self._untold = 0  # of them, those of tokens that have not become text yet
        self._open: dict[str, Any] | None = None  # the item that is begun, as it began
        self._parts = 0  # items that were begun
        self.items: list[dict[str, Any]] = []  # those that are complete

    def add_reasoning(self, text: str) -> list[Event]:
        """More of a thought; nothing is told while there is none."""
        if not text:
            return []
        self._thoughts += text
        begun = self._begin("reasoning", {"summary": [], "content": []})
        return [*begun, {"type": "response.reasoning_text.delta", "delta": text} | self._place()]

    def add_text(self, text: str, logprobs: Sequence[dict[str, Any]]) -> list[Event]:
        """More text; nothing is told while there is none."""
        self._logprobs += logprobs
        self._untold += len(logprobs)
        if not text:
            return []
        begun = self._begin_message()
        self._text += text
        told = self._logprobs[len(self._logprobs) - self._untold :]
        self._untold = 0
        delta = {"type": "response.output_text.delta", "delta": text, "logprobs": told}
        return [*begun, delta | self._place()]

    def add_calls(self, calls: Sequence[ToolCall]) -> list[Event]:
        """Calls, each complete; what was begun before them is closed."""
        events = self._close("completed") if calls else []
        for call in calls:
            events += self._call(call)
        return events

    def finish(self, *, complete: bool) -> list[Event]:
        """The answer has ended. Without any item, there is an empty message."""
        begun = [] if self._open or any(item["type"] != "reasoning" for item in self.items) else self._begin_message()
        return [*begun, *self._close("completed" if complete else "incomplete")]

    def _begin_message(self) -> list[Event]:
        if self._open is not None and self._open["type"] == "message":
            return []
        begun = self._begin("message", {"role": "assistant", "content": []})
        part = {"type": "response.content_part.added", "part": _part("", [])}
        return [*begun, part | self._place()]

    def _begin(self, kind: str, more: dict[str, Any]) -> list[Event]:
        if self._open is not None and self._open["type"] == kind:
            return []
        events = self._close("completed")
        number = f"{self._parts:02d}" if self._parts else ""
        self._parts += 1
        self._open = {"id": f"{_PREFIXES[kind]}_{self._id}{number}", "type": kind} | more
        item = self._open | {"status": "in_progress"}
        return [*events, {"type": "response.output_item.added", "output_index": len(self.items), "item": item}]

    def _close(self, status: str) -> list[Event]:
        if self._open is None:
            return []
        place, index = self._place(), len(self.items)
        done = self._close_thoughts(place) if self._open["type"] == "reasoning" else self._close_message(place)
        item = self._open | {"status": status, "content": [done[-1].get("part") or _thought(done[0]["text"])]}
        self.items.append(item)
        self._open = None
        return [*done, {"type": "response.output_item.done", "output_index": index, "item": item}]

    def _close_thoughts(self, place: dict[str, Any]) -> list[Event]:
        text, self._thoughts = self._thoughts, ""
        return [{"type": "response.reasoning_text.done", "text": text} | place]

    def _close_message(self, place: dict[str, Any]) -> list[Event]:
        text, self._text = self._text, ""
        logprobs, self._logprobs, self._untold = self._logprobs, [], 0
        return [
            {"type": "response.output_text.done", "text": text, "logprobs": logprobs} | place,
            {"type": "response.content_part.done", "part": _part(text, logprobs)} | place,
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
        assert self._open is not None
        return {"item_id": self._open["id"], "output_index": len(self.items), "content_index": 0}


def _part(text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def _thought(text: str) -> dict[str, Any]:
    return {"type": "reasoning_text", "text": text}


_PREFIXES = {"message": "msg", "reasoning": "rs"}
