"""Chunked prefill: how much of a prompt to compute at once, and when.

While no answer is streamed, prompts go first, in the largest chunks. Beside streamed answers:

1. the rest of a prompt is computed at once if the pause is hardly noticeable;
2. a long prompt gets one large chunk every `_STEPS_BETWEEN` decode steps. Small chunks in every step are worse for all:
   each reads all weights and all earlier keys again. Beside one streamed answer (SmolLM2, int4, 2 cores), chunks of 4
   tokens quadrupled the time per token, and a prompt of 2,000 tokens took 20 seconds instead of 11;
3. other prompts, and all prompts while several wait for idle slots, get a chunk in every step.
"""

from dataclasses import dataclass

_SMOOTHING = 0.2
_CHUNK_SMOOTHING = 0.5  # a token costs several times more in a small chunk than in the large one before it
_LARGE = 32  # tokens from which on a chunk's fixed cost counts little
_STEPS_BETWEEN = 28
_SHARE = 0.7  # how long the chunk of every turn may take for each prompt that waits, in decode steps
_LEAST = 4


@dataclass(frozen=True)
class Pauses:
    """What readers of streamed answers notice, in seconds unless said.

    Attributes:
        hardly_seen: a pause that nobody minds: the rest of a prompt that takes no longer is computed at once.
        long_prompt: a prompt that takes longer is computed in few large chunks.
        longest: the longest pause, once in so many tokens: more than 19, so that 95 of 100 tokens come as if no prompt
            was there.
        longest_steps: the same in decode steps, for models so slow that less would not move.
        reading: step and chunk together; faster nobody reads. On a fast device the largest chunks fit into it.
    """

    hardly_seen: float = 0.100
    long_prompt: float = 1.0
    longest: float = 0.250
    longest_steps: int = 5
    reading: float = 0.050


@dataclass(frozen=True)
class PrefillWork:
    """A prompt in prefill.

    Attributes:
        left: prompt tokens not yet computed.
        whole: prompt tokens that were not found in a cache.
        waited: seconds since the request arrived.
        waiting: prompts, this one included, that wait while slots are idle.
    """

    left: int
    whole: int
    waited: float = 0.0
    waiting: int = 1


class ChunkedPrefillPolicy:
    """Proposes chunk sizes from measured step times. The sizes never change a result, not even in the last bit.

    Args:
        largest: most tokens of a chunk; its size while no answer is streamed.
        aging_seconds: age at which a prompt starts to get larger chunks: twice as large at twice this age, and so on.
        pauses: what readers notice.

    Attributes:
        decode_seconds: how long a decode step takes, smoothed; 0 before the first.
    """

    def __init__(self, largest: int, aging_seconds: float = 60.0, pauses: Pauses = Pauses()) -> None:
        self.largest = largest
        self.pauses = pauses
        self.aging_seconds = aging_seconds
        self.decode_seconds = 0.0
        self._small_token_seconds = 0.0  # in the last few chunks, whatever their size
        self._token_seconds = 0.0
        self._steps = _STEPS_BETWEEN  # since the last chunk

    def size(self, prompt: PrefillWork, *, streaming_active: bool) -> int:
        """Tokens of the next chunk; 0 if the streamed answers go first now."""
        if not streaming_active or not (self.decode_seconds and self._token_seconds):
            return self.largest
        most = min(self.largest, prompt.left)
        if prompt.left * self._token_seconds <= self.pauses.hardly_seen:
            return most
        urgency = max(1.0, prompt.waited / self.aging_seconds)
        if prompt.waiting == 1 and self._is_long(prompt):
            return 0 if self._steps * urgency < _STEPS_BETWEEN else min(most, self._pause_tokens())
        return min(most, self._every_turn_tokens(urgency * prompt.waiting))

    def stepped(self) -> None:
        """Count a decode step."""
        self._steps += 1

    def decoded(self, seconds: float) -> None:
        """Record how long a decode step took."""
        self.decode_seconds = _smoothed(self.decode_seconds, seconds, _SMOOTHING)

    def prefilled(self, tokens: int, seconds: float) -> None:
        """Record how long a chunk of this many tokens took."""
        self._steps = 0
        self._small_token_seconds = _smoothed(self._small_token_seconds, seconds / tokens, _CHUNK_SMOOTHING)
        if tokens >= _LARGE or not self._token_seconds:
            self._token_seconds = _smoothed(self._token_seconds, seconds / tokens, _CHUNK_SMOOTHING)

    def _is_long(self, prompt: PrefillWork) -> bool:
        """Whether the prompt would slow streamed answers noticeably: no on a device that is fast enough."""
        quick = self.decode_seconds + self.largest * self._token_seconds <= self.pauses.reading
        return prompt.whole * self._token_seconds > self.pauses.long_prompt and not quick

    def _pause_tokens(self) -> int:
        seconds = max(self.pauses.longest, self.pauses.longest_steps * self.decode_seconds)
        return max(_LEAST, int(seconds / self._token_seconds))

    def _every_turn_tokens(self, urgency: float) -> int:
        seconds = urgency * max(_SHARE * self.decode_seconds, self.pauses.reading - self.decode_seconds)
        return max(_LEAST, int(seconds / self._small_token_seconds))


def _smoothed(old: float, new: float, part: float) -> float:
    return new if not old else old + part * (new - old)
