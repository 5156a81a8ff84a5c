"""One answer in the making: from logits to tokens to text, and why and when it ends."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..options import SamplingParams
from ..sampling.logprobs import FloatArray, TokenLogprob, token_logprob
from ..sampling.sampler import Sampler
from ..text.detokenizer import Detokenizer
from ..text.stop_strings import StopStrings
from .scheduling.sequence import Sequence
from .speculation import Drafts

if TYPE_CHECKING:
    from ..chat.formats.format import ToolCall


@dataclass(frozen=True, slots=True)
class OutputDelta:
    """What one step added to an answer.

    Attributes:
        index: which of the request's answers.
        text: text that is certain now; may be empty while a character or a stop string is incomplete.
        token_ids: the new tokens, including the id that ended the answer.
        logprobs: one entry per new token where they were asked for.
        finish_reason: "stop", "length", "cancelled", "timeout" or "error" in the last delta, else None; in a chat
            also "tool_calls".
        reasoning: what a chat's answer adds to its thoughts.
        tool_calls: calls that are complete now, of a chat.
    """

    index: int
    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: str | None = None
    reasoning: str = ""
    tool_calls: "tuple[ToolCall, ...]" = ()


@dataclass(slots=True)
class Timings:
    """When an answer reached each stage, in seconds of a monotonic clock; None for stages it did not reach."""

    submitted: float = 0.0
    admitted: float | None = None
    first_token: float | None = None
    finished: float | None = None

    @property
    def time_to_first_token(self) -> float | None:
        """Seconds from submission to the first token."""
        return None if self.first_token is None else self.first_token - self.submitted

    @property
    def total(self) -> float | None:
        """Seconds from submission to the end."""
        return None if self.finished is None else self.finished - self.submitted


class RequestState:
    """One answer: its tokens, sampler and text. Only the engine's thread changes it; a listener receives the deltas.

    Args:
        sequence: its tokens and place, shared with the scheduler.
        sampler: chooses tokens.
        detokenizer: turns them into text, or None where only ids are wanted.
        params: when it ends.
        stop_ids: ids that end it.
        index: which of the request's answers.
        lookup: drafts tokens for speculative decoding, or None.
    """

    def __init__(
        self,
        sequence: Sequence,
        sampler: Sampler,
        detokenizer: Detokenizer,
        params: SamplingParams,
        stop_ids: frozenset[int],
        index: int = 0,
        lookup: Drafts | None = None,
    ) -> None:
        self.sequence = sequence
        self.sampler = sampler
        self.params = params
        self.index = index
        self.listener: Listener | None = None
        self.timings = Timings(submitted=sequence.arrival)
        self.prompt_logprobs: list[TokenLogprob | None] | None = [None] if sequence.scored else None
        self.lookup = lookup
        self.error: Exception | None = None
        self._detokenizer = detokenizer
        self._stops = StopStrings(tuple(params.stop)) if params.stop else None
        self._stop_ids = stop_ids

    def listen(self, listener: "Listener") -> None:
        """Call `listener` from the engine's thread with this answer and every delta; it must not block."""
        self.listener = listener

    def take(self, logits: FloatArray) -> tuple[OutputDelta, str | None]:
        """Sample from logits [vocab] and append the token.

        Returns:
            What to emit, and why the answer ends now, or None.

        Raises:
            ExecutionError: the logits are not usable. Nothing has changed then.
        """
        sampled = self.sampler.sample(logits)
        self.sequence.tokens.append(sampled.token_id)
        text, reason = self._read(sampled.token_id)
        logprobs = () if sampled.logprob is None else (sampled.logprob,)
        return OutputDelta(self.index, text, (sampled.token_id,), logprobs), reason

    def score_prompt(self, start: int, logits: FloatArray) -> None:
        """Take logits [n, vocab] of the prompt positions from `start` on; each scores the token after it."""
        assert self.prompt_logprobs is not None
        for position, row in enumerate(logits, start + 1):
            if position == len(self.prompt_logprobs) < self.sequence.prompt_length:  # not again after a preemption
                count = self.params.prompt_logprobs or 0
                self.prompt_logprobs.append(token_logprob(row, self.sequence.tokens[position], count))

    def rest(self) -> str:
        """Return the text that is still held back, when something other than a stop string ends the answer."""
        rest = self._detokenizer.flush()
        if self._stops is None or not self._stops_apply:
            return rest
        found = self._stops.push(rest)
        return found.text if found.stop else found.text + self._stops.flush()

    def _read(self, token_id: int) -> tuple[str, str | None]:
        if token_id in self._stop_ids and self._stops_apply:
            return self.rest(), "stop"
        text = self._detokenizer.push(token_id)
        if self._stops is not None and self._stops_apply:
            found = self._stops.push(text)
            if found.stop is not None:
                return found.text, "stop"
            text = found.text
        if len(self.sequence.tokens) >= self.sequence.max_len:
            return text + self.rest(), "length"
        return text, None

    @property
    def _stops_apply(self) -> bool:
        return self.sequence.generated >= self.params.min_tokens


Listener = Callable[[RequestState, OutputDelta], None]
