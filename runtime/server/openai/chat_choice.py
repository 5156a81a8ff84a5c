"""One answer to a conversation as far as it is known: its text, its tool calls, and its logprobs."""

from dataclasses import dataclass, field

from ...chat.formats.tool_calls import ToolCall, ToolCallReader
from ...engine.generation import OutputDelta
from ...sampling.logprobs import TokenLogprob


@dataclass(frozen=True)
class ChoicePart:
    """What a piece adds to a choice."""

    content: str
    calls: list[ToolCall]
    logprobs: tuple[TokenLogprob, ...]
    finish_reason: str | None


@dataclass
class ChatChoice:
    """A choice, piece by piece.

    Attributes:
        reader: separates its text from its tool calls, or None where none are looked for.
        ends: ids that end an answer; they are no part of its text.
    """

    reader: ToolCallReader | None
    ends: frozenset[int]
    begun: bool = False
    content: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None

    def push(self, delta: OutputDelta) -> ChoicePart:
        """Take what a step added."""
        self.begun = True
        text, calls = (delta.text, []) if self.reader is None else self._read(self.reader, delta)
        entries = delta.logprobs
        if delta.finish_reason == "stop" and delta.token_ids and delta.token_ids[-1] in self.ends:
            entries = entries[:-1]  # the end token is not part of the text
        self.content += text
        self.calls += calls
        self.logprobs += entries
        self.finish_reason = "tool_calls" if calls and delta.finish_reason == "stop" else delta.finish_reason
        return ChoicePart(text, calls, entries, self.finish_reason)

    @staticmethod
    def _read(reader: ToolCallReader, delta: OutputDelta) -> tuple[str, list[ToolCall]]:
        text = reader.push(delta.text)
        if delta.finish_reason is None:
            return text, []
        rest, calls = reader.finish()
        return text + rest, calls
