"""Speculative decoding by prompt lookup: what followed the last few tokens earlier is likely to follow them again.

A draft is verified in one run that costs little more than one token. Each position is then sampled as always, from the
request's own random stream, and the draft is accepted up to the first token that differs from what was sampled. This is
rejection sampling with a deterministic proposal, so the distribution is unchanged; moreover, the same seed gives the
same tokens with and without drafts.

On CPU, "the same" is bit for bit where keys and values are stored in codes (`onnxlm quantize-kv`): their attention has
one kernel for one position and for several. Over float keys and values there are two kernels, whose logits differ by
about 1e-5. Graphs whose products round activations to 8 bits (MatMulNBits at level 4) carry that on to tenths of a
logit, as much as that rounding itself changes them: there, close choices can fall differently.
"""

from typing import Protocol

_ORDERS = (4, 3, 2)  # tokens that must match, longest first
_FIRST_DRAFT = 4
_TRIALS = 4  # drafts before an opinion is formed
_FIRST_PAUSE, _LONGEST_PAUSE = 16, 512  # tokens without drafts after they did not pay
_SMOOTHING = 0.3


class Drafts(Protocol):
    """Drafts for one sequence."""

    def draft(self, tokens: list[int], room: int) -> list[int]:
        """Propose up to `room` tokens to follow `tokens`; often none."""

    def verified(self, drafted: int, accepted: int, seconds: float, decode_seconds: float) -> None:
        """Adapt after a verification."""


class Pacing:
    """How long drafts are, and when there are none because they do not pay.

    Args:
        most: longest draft.

    Attributes:
        size: tokens of the next draft.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.size = min(_FIRST_DRAFT, most)
        self._pause = 0
        self._next_pause = _FIRST_PAUSE
        self._trials = 0
        self._gain = 0.0

    def pauses(self) -> bool:
        """Whether this step is to be without a draft; called once a step."""
        if not self._pause:
            return False
        self._pause -= 1
        return True

    def verified(self, drafted: int, accepted: int, seconds: float, decode_seconds: float) -> None:
        """Adapt the draft size after a verification, and pause drafting while it does not pay.

        Args:
            drafted, accepted: tokens of the draft, and how many were accepted.
            seconds: how long drafting and verifying took.
            decode_seconds: how long a plain decode step takes.
        """
        self.size = min(self._most, 2 * self.size) if accepted == drafted else max(2, accepted + 1)
        gain = (accepted + 1) * decode_seconds / seconds  # tokens per second, relative to plain decoding
        self._gain = gain if not self._trials else self._gain + _SMOOTHING * (gain - self._gain)
        self._trials += 1
        if self._trials < _TRIALS:
            return
        if self._gain >= 1:
            self._next_pause = _FIRST_PAUSE
        else:
            self._pause, self._next_pause = self._next_pause, min(2 * self._next_pause, _LONGEST_PAUSE)
            self._trials = 0


class PromptLookup:
    """Drafts for one sequence, from its own tokens.

    Args:
        most: longest draft.
    """

    def __init__(self, most: int) -> None:
        self._pacing = Pacing(most)
        self._after: dict[tuple[int, ...], int] = {}  # tokens → where the text went on after their last occurrence
        self._seen = 0

    def draft(self, tokens: list[int], room: int) -> list[int]:
        """Propose up to `room` tokens to follow `tokens`; often none."""
        self._learn(tokens)
        if self._pacing.pauses():
            return []
        for order in _ORDERS:
            place = self._after.get(tuple(tokens[-order:])) if len(tokens) >= order else None
            if place is not None:
                return tokens[place : place + min(self._pacing.size, room)]
        return []

    def verified(self, drafted: int, accepted: int, seconds: float, decode_seconds: float) -> None:
        """Adapt after a verification; see Pacing."""
        self._pacing.verified(drafted, accepted, seconds, decode_seconds)

    def _learn(self, tokens: list[int]) -> None:
        """Index every n-gram whose next token is known."""
        for place in range(max(1, self._seen), len(tokens)):
            for order in _ORDERS:
                if place >= order:
                    self._after[tuple(tokens[place - order : place])] = place
        self._seen = len(tokens)
