"""From one row of logits to one token: bias → penalties → masks → temperature → top-k → top-p → min-p → draw.

Greedy without any of them is a plain argmax over the model's own array. Ties at the edge of top-k or top-p are all
kept, and of equally likely tokens greedy takes the lowest id, so that results do not depend on a sorting algorithm.
"""

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from ..errors import ExecutionError
from ..options import SamplingParams
from .logprobs import FloatArray, TokenLogprob, token_logprob

COLDEST = 1e-5  # below it, dividing float32 logits by the temperature overflows: the result is greedy anyway
_BLOCK = 256
_SEED_BITS = 53  # an answer reports its seed in JSON, whose readers may hold integers as doubles


class TokenConstraint(Protocol):
    """Restricts each next token; structured output implements it."""

    def allowed(self) -> npt.NDArray[np.bool_] | None:
        """[vocab]: True where the token may come next; None where every token may."""

    def advance(self, token_id: int) -> None:
        """The token was chosen."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """One chosen token; `logprob` if it was asked for."""

    token_id: int
    logprob: TokenLogprob | None = None


class Sampler:
    """The sampling state of one answer: its random stream, its token counts and its constraint.

    Args:
        params: the request's parameters; what is None in them takes its neutral value (greedy).
        vocab_size: length of a row of logits.
        prompt_ids: tokens that the repetition penalty already counts.
        stop_ids: ids that end the answer; `min_tokens` keeps them from being sampled too early.
        index: which of the request's `n` answers this is; each has its own random stream.
        constraint: restricts each token, if given.

    Attributes:
        seed: the request's seed, or the fresh one that was drawn for it. The same seed and index repeat the answer.
    """

    def __init__(
        self,
        params: SamplingParams,
        vocab_size: int,
        prompt_ids: Iterable[int] = (),
        *,
        stop_ids: Iterable[int] = (),
        index: int = 0,
        constraint: TokenConstraint | None = None,
    ) -> None:
        params.check(vocab_size)
        self.params = params.with_model_defaults({})
        self.seed: int = secrets.randbits(_SEED_BITS) if params.seed is None else params.seed
        self._rng = np.random.Generator(np.random.Philox(np.random.SeedSequence([self.seed, index])))
        self._constraint = constraint
        self._stop_ids = _ids({*stop_ids, *params.stop_token_ids})
        self._bias = (_ids(params.logit_bias), np.fromiter(params.logit_bias.values(), np.float32))
        self._penalties = Penalties.of(self.params, vocab_size, prompt_ids)
        self._generated = 0
        self._greedy = _value(self.params.temperature) < COLDEST

    def sample(self, logits: FloatArray) -> Sampled:
        """Choose the next token and remember it.

        Args:
            logits: [vocab], not modified.

        Raises:
            ExecutionError: the logits hold NaN or infinity, or no token is allowed. Nothing is remembered then.
        """
        raw = np.asarray(logits, np.float32)
        token_id = int(raw.argmax())  # a NaN is the maximum, if there is one
        _require_finite(raw[token_id])
        scores = self._processed(raw)
        if not self._greedy:
            token_id = self._draw(scores)
        elif scores is not raw:
            token_id = int(scores.argmax())
        self._remember(token_id)
        count = self.params.logprobs
        return Sampled(token_id, None if count is None else token_logprob(raw, token_id, count))

    def _processed(self, raw: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        too_early = bool(self._stop_ids.size) and self._generated < self.params.min_tokens
        mask = self._constraint.allowed() if self._constraint else None
        if not (self._bias[0].size or self._penalties or too_early or mask is not None):
            return raw
        scores = raw.copy()
        scores[self._bias[0]] += self._bias[1]
        if self._penalties:
            self._penalties.apply(scores)
        if too_early:
            scores[self._stop_ids] = -np.inf
        if mask is not None:
            scores[~mask] = -np.inf
        if scores.max() == -np.inf:
            raise ExecutionError("No token is allowed next: the request's constraints contradict each other here.")
        return scores

    def _draw(self, scores: npt.NDArray[np.float32]) -> int:
        weights = np.exp((scores - scores.max()) / np.float32(_value(self.params.temperature)))
        threshold = cut_off(weights, _value(self.params.top_k), _value(self.params.top_p), _value(self.params.min_p))
        if threshold > 0:
            weights[weights < threshold] = 0
        return _place(weights, self._rng.random(), "right")

    def _remember(self, token_id: int) -> None:
        self._generated += 1
        if self._penalties:
            self._penalties.count(token_id)
        if self._constraint:
            self._constraint.advance(token_id)


class Penalties:
    """Repetition, presence and frequency penalties over the tokens seen so far."""

    def __init__(self, params: SamplingParams, vocab_size: int, prompt_ids: Iterable[int]) -> None:
        self._repetition = np.float32(params.repetition_penalty)
        self._presence = np.float32(params.presence_penalty)
        self._frequency = np.float32(params.frequency_penalty)
        self._seen = np.zeros(vocab_size, np.bool_)
        self._seen[_ids(prompt_ids)] = True
        self._counts = np.zeros(vocab_size, np.int32)

    @classmethod
    def of(cls, params: SamplingParams, vocab_size: int, prompt_ids: Iterable[int]) -> "Penalties | None":
        """The penalties of `params`, or None where all are off."""
        off = params.repetition_penalty == 1.0 and not params.presence_penalty and not params.frequency_penalty
        return None if off else cls(params, vocab_size, prompt_ids)

    def apply(self, scores: npt.NDArray[np.float32]) -> None:
        """Change `scores` [vocab] in place."""
        seen = np.flatnonzero(self._seen)
        old = scores[seen]
        scores[seen] = np.where(old > 0, old / self._repetition, old * self._repetition)
        used = np.flatnonzero(self._counts)
        scores[used] -= self._presence + self._frequency * self._counts[used]

    def count(self, token_id: int) -> None:
        """Count one more token of the output."""
        self._seen[token_id] = True
        self._counts[token_id] += 1


def cut_off(weights: npt.NDArray[np.float32], top_k: int, top_p: float, min_p: float) -> float:
    """The smallest weight that survives top-k, then top-p among those, then min-p. Ties with the k-th survive top-k.

    Args:
        weights: [vocab], proportional to the probabilities, the largest being 1.
    """
    threshold = 0.0
    if 0 < top_k < weights.size:
        threshold = float(np.partition(weights, weights.size - top_k)[weights.size - top_k])
    if top_p < 1:
        threshold = _nucleus(weights[weights >= threshold] if threshold > 0 else weights, top_p)
    return max(threshold, min_p)


def _nucleus(weights: npt.NDArray[np.float32], top_p: float) -> float:
    # All the tokens below this floor together weigh less than what top-p drops: only the others need sorting.
    total = float(weights.sum(dtype=np.float64))
    ordered = np.sort(weights[weights >= (1 - top_p) * total / weights.size])[::-1]
    share = top_p * total / float(ordered.sum(dtype=np.float64))
    return float(ordered[_place(ordered, min(share, 1.0), "left")])


def _place(weights: npt.NDArray[np.float32], share: float, side: Literal["left", "right"]) -> int:
    """Where the cumulative weight reaches ("left") or exceeds ("right") this share of the total.

    In two levels, because summing blocks is ten times as fast as a cumulative sum over a vocabulary.
    """
    starts = np.arange(0, weights.size, _BLOCK)
    sums = np.add.reduceat(weights, starts, dtype=np.float64).cumsum()
    target = share * sums[-1]
    block = min(int(sums.searchsorted(target, side)), sums.size - 1)
    inside = weights[starts[block] : starts[block] + _BLOCK]
    before = sums[block - 1] if block else 0.0
    place = int(np.cumsum(inside, dtype=np.float64).searchsorted(target - before, side))
    if place == inside.size:  # the two ways of summing rounded differently
        place = int(np.flatnonzero(inside)[-1])
    return int(starts[block]) + place


def _require_finite(peak: np.float32) -> None:
    if not np.isfinite(peak):
        raise ExecutionError(
            f"The model computed a logit of {peak}: its weights or this request's cache are broken. "
            "Only this request fails; run `onnxlm inspect` with --verify on the bundle if it happens again."
        )


def _ids(ids: Iterable[int]) -> npt.NDArray[np.intp]:
    return np.fromiter(ids, np.intp)


def _value(option: Any) -> Any:
    assert option is not None, "with_model_defaults leaves no None"
    return option
