"""A start-up self-test: does an answer's every bit stay the same in any company and in any chunks, on this machine?

On CPU it does, with the operators that the exporter emits; other providers and other kernels have to show it.
"""

from dataclasses import dataclass

import numpy as np

from .binding import FloatArray, IntArray
from .invariant_splits import MIN_CHUNK
from .runner_protocol import ModelRunner, batch_prefill_of

_LENGTHS = (37, 5, 50)
_CHUNK = 9


@dataclass(frozen=True)
class Determinism:
    """What was found to be equal bit for bit.

    Attributes:
        chunks: a prompt computed in pieces, and in one.
        company: a slot computed alone, and among others.
    """

    chunks: bool
    company: bool

    @property
    def complete(self) -> bool:
        """Whether an answer depends on its request alone."""
        return self.chunks and self.company


def check_determinism(executor: ModelRunner) -> Determinism:
    """Compare logits on a few short random prompts. Uses the executor's slots, so nothing may be in them."""
    slots = min(executor.slots, len(_LENGTHS))
    longest = max(1, min(executor.capacity - 1, max(_LENGTHS)))
    ids = np.random.default_rng(0).integers(0, executor.vocab_size, longest)
    lengths = np.minimum(np.array(_LENGTHS[:slots]), longest)
    last = slots - 1
    pieces = _in_pieces(executor, last, ids[: lengths[last]])
    wholes = [executor.prefill(slot, 0, ids[:length]).copy() for slot, length in enumerate(lengths)]
    tokens = ids[:slots]
    equal = _prefill_together(executor, ids, lengths, wholes)
    together = executor.decode(tokens, lengths).copy()
    alone = []
    for slot in range(slots):
        executor.copy_slot(slot, 0, int(lengths[slot]))
        alone.append(executor.decode(tokens[slot : slot + 1], lengths[slot : slot + 1])[0].copy())
    for slot in range(slots):
        executor.free_slot(slot)
    return Determinism(np.array_equal(pieces, wholes[last]), equal and np.array_equal(np.stack(alone), together))


def _prefill_together(executor: ModelRunner, ids: IntArray, lengths: IntArray, wholes: list[FloatArray]) -> bool:
    """Whether all prompts in one run give the same; the slots hold them afterwards."""
    batching = batch_prefill_of(executor)
    if batching is None or lengths.min() < MIN_CHUNK:
        return True
    logits = batching.prefill_batch(0, [0] * len(lengths), [ids[:length] for length in lengths])
    return np.array_equal(logits, np.stack(wholes))


def _in_pieces(executor: ModelRunner, slot: int, ids: IntArray) -> FloatArray:
    starts = list(range(0, max(1, len(ids) - 1), _CHUNK))
    for start, stop in zip(starts, [*starts[1:], len(ids)], strict=True):
        logits = executor.prefill(slot, start, ids[start:stop])
    return logits.copy()
