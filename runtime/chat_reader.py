"""The deltas of a chat's answer, read: thoughts and tool calls beside the text."""

from dataclasses import replace
from typing import TYPE_CHECKING

from .engine.generation import OutputDelta

if TYPE_CHECKING:
    from .chat.answer_plan import AnswerPlan


class ChatReader:
    """Reads one answer; each delta goes through it once, in order."""

    def __init__(self, plan: "AnswerPlan") -> None:
        self._reader = plan.reader()
        self._called = False

    def read(self, delta: OutputDelta) -> OutputDelta:
        """The delta with its text parted into text, thoughts and calls."""
        part = self._reader.push(delta.text)
        text, reasoning, calls = part.content, part.reasoning, part.calls
        reason = delta.finish_reason
        if reason is not None:
            rest = self._reader.finish(cut=reason != "stop")
            text, reasoning, calls = text + rest.content, reasoning + rest.reasoning, calls + rest.calls
        self._called = self._called or bool(calls)
        if reason == "stop" and self._called:
            reason = "tool_calls"
        return replace(delta, text=text, reasoning=reasoning, tool_calls=calls, finish_reason=reason)
