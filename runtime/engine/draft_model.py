"""Speculative decoding by a draft model: a small model of the same vocabulary says what probably comes next.

Each draft is its greedy continuation. What the large model samples decides, position by position (see speculation), so
answers are those without a draft model, and the same seed gives the same tokens.
"""

import logging
import time

import numpy as np

from ..errors import ExecutionError
from ..ort.runner_protocol import MAX_REWIND, ModelRunner
from .failures import execution_errors
from .speculation import Pacing

DRAFT_TOKENS = 5  # most of a draft, where nothing else is said
_CHUNK = 512  # tokens of a prompt in one run of the draft model
_log = logging.getLogger("onnxlm.engine")


class DraftModel:
    """A model in one slot that continues whatever sequence it is asked about. Engine thread only.

    Args:
        executor: computes its steps; its layers keep no recurrent state.
        vocab_size: ids below this are known to the large model.
    """

    def __init__(self, executor: ModelRunner, vocab_size: int) -> None:
        self._executor = executor
        self._ids = min(vocab_size, executor.vocab_size)
        self._computed: list[int] = []  # tokens whose keys and values are in the slot

    def continuation(self, tokens: list[int], count: int) -> list[int]:
        """The `count` likeliest tokens after `tokens`, one by one; fewer or none where it cannot say.

        Raises:
            ExecutionError: a step failed.
        """
        if count < 1 or len(tokens) + count > self._executor.capacity:
            return []
        known = self._known(tokens)
        if any(token >= self._ids for token in tokens[known:]):
            return []
        self._computed = self._computed[:known]
        drafted: list[int] = []
        with execution_errors("A draft"):
            logits = self._read(tokens)
            while (token := int(np.argmax(logits[: self._ids]))) >= 0:
                drafted.append(token)
                if len(drafted) == count:
                    break
                logits = self._step(token)
        return drafted

    def close(self) -> None:
        """Release the session and its memory."""
        self._executor.close()

    def _known(self, tokens: list[int]) -> int:
        """How many of the first tokens are computed; at least the last one is computed again, for its logits."""
        pairs = zip(self._computed, tokens[:-1], strict=False)
        most = min(len(self._computed), len(tokens) - 1)
        known = next((place for place, (ours, theirs) in enumerate(pairs) if ours != theirs), most)
        return known if len(self._computed) - known <= MAX_REWIND else 0  # windows may have been evicted

    def _read(self, tokens: list[int]) -> np.ndarray:
        """Compute what is not computed yet; the logits after the last token."""
        start = len(self._computed)
        if len(tokens) - start == 1:
            return self._step(tokens[-1])
        while start < len(tokens):
            stop = len(tokens) if len(tokens) - start < 2 * _CHUNK else start + _CHUNK
            logits = self._executor.prefill(0, start, np.array(tokens[start:stop], np.int64))
            start, self._computed = stop, tokens[:stop]
        return logits

    def _step(self, token: int) -> np.ndarray:
        lengths = np.array([len(self._computed)], np.int32)
        logits: np.ndarray = self._executor.decode(np.array([token], np.int64), lengths)[0]
        self._computed.append(token)
        return logits


class ModelDrafts:
    """Drafts for one sequence, from a draft model, while they pay.

    Args:
        model: shared by all sequences.
        most: longest draft.
    """

    def __init__(self, model: DraftModel, most: int) -> None:
        self._model = model
        self._pacing = Pacing(most)
        self._seconds = 0.0  # what the last draft took

    def draft(self, tokens: list[int], room: int) -> list[int]:
        """Propose up to `room` tokens to follow `tokens`; none while drafting does not pay."""
        if self._pacing.pauses():
            return []
        started = time.perf_counter()
        try:
            return self._model.continuation(tokens, min(self._pacing.size, room))
        except ExecutionError as error:
            _log.warning("%s Decoding goes on without it.", error)
            return []
        finally:
            self._seconds = time.perf_counter() - started

    def verified(self, drafted: int, accepted: int, seconds: float, decode_seconds: float) -> None:
        """Adapt after a verification that took `seconds`; see Pacing."""
        self._pacing.verified(drafted, accepted, seconds + self._seconds, decode_seconds)
