"""One answer to a conversation as far as it is known: its text, its thoughts, its tool calls, and its logprobs."""

from dataclasses import dataclass, field, replace

from ...chat.formats.format import ToolCall
from ...chat.formats.reader import AnswerReader
from ...engine.generation import OutputDelta
from ...sampling.logprobs import TokenLogprob


@dataclass(frozen=True)
class ChoicePart:
    """What a piece adds to a choice; `first_call` is how many calls came before."""

    content: str
    reasoning: str
    calls: tuple[ToolCall, ...]
    first_call: int
    logprobs: tuple[TokenLogprob, ...]
    finish_reason: str | None


@dataclass
class ChatChoice:
    """A choice, piece by piece.

    Attributes:
        reader: separates its text from thoughts and tool calls.
        ends: ids that end an answer; they are no part of its text.
    """

    reader: AnswerReader
    ends: frozenset[int]
    begun: bool = False
    content: str = ""
    reasoning: str = ""
    reasoning_tokens: int = 0
    calls: list[ToolCall] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None

    def push(self, delta: OutputDelta) -> ChoicePart:
        """Take what a step added."""
        self.begun = True
        content, reasoning, calls = self._read(delta)
        entries = delta.logprobs
        if delta.finish_reason == "stop" and delta.token_ids and delta.token_ids[-1] in self.ends:
            entries = entries[:-1]  # the end token is not part of the text
        part = ChoicePart(content, reasoning, calls, len(self.calls), entries, delta.finish_reason)
        self.content += content
        self.reasoning += reasoning
        self.calls += calls
        self.logprobs += entries
        if self.calls and delta.finish_reason == "stop":
            part = replace(part, finish_reason="tool_calls")
        self.finish_reason = part.finish_reason
        return part

    def _read(self, delta: OutputDelta) -> tuple[str, str, tuple[ToolCall, ...]]:
        thinking = self.reader.thinking
        part = self.reader.push(delta.text)
        if thinking or self.reader.thinking:
            self.reasoning_tokens += len(delta.token_ids)
        if delta.finish_reason is None:
            return part.content, part.reasoning, part.calls
        rest = self.reader.finish(cut=delta.finish_reason != "stop")
        return part.content + rest.content, part.reasoning + rest.reasoning, part.calls + rest.calls
