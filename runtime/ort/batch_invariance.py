"""Batch invariance: an answer's bits depend neither on its neighbours nor on how its prompt is cut into chunks.

On CPU this holds with the operators that the exporter emits, if chunks are cut as `invariant_splits` says. A self-test
at the start, `check_determinism`, shows whether it holds with other providers and kernels.
"""

from dataclasses import dataclass

import numpy as np

from .binding import FloatArray, IntArray
from .runner_protocol import MIN_CHUNK, ModelRunner, batch_prefill_of

_LENGTHS = (37, 5, 50)
_CHUNK = 9


def invariant_splits(length: int, blocks: frozenset[int]) -> list[int]:
    """Ends of the pieces in which a chunk of `length` tokens is run: itself, or itself less a short tail, and the tail.

    GroupQueryAttention on CPU takes query slots in blocks of 2·head_dim, and a block of a single slot takes another
    kernel, whose last bits differ. Without such blocks, every way to cut a prompt into chunks gives the same bits.
    """

    def lonely(slots: int) -> bool:
        return any(slots % block == 1 for block in blocks)

    tails = range(2, length - 1)
    if not lonely(length) or not tails:
        return [length]
    tail = next((tail for tail in tails if not lonely(tail) and not lonely(length - tail)), 0)
    return [length - tail, length] if tail else [length]


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
