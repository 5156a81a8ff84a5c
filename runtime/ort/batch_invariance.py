"""A start-up self-test: does an answer's every bit stay the same in any company and in any chunks, on this machine?

On CPU it does, with the operators that the exporter emits; other providers and other kernels have to show it.
"""

from dataclasses import dataclass

import numpy as np

from ..engine.scheduler import MIN_CHUNK
from .binding import FloatArray, IntArray
from .runner_protocol import StepExecutor, batch_prefill_of

_LENGTHS = (37, 5, 50)
_CHUNK = 9


@dataclass(frozen=True)
class Determinism:
    """What was found to be equal bit for bit.

    Attributes:
        chunks: a prompt computed in pieces, and in one.
        company: a row computed alone, and among others.
    """

    chunks: bool
    company: bool

    @property
    def complete(self) -> bool:
        """Whether an answer depends on its request alone."""
        return self.chunks and self.company


def check_determinism(executor: StepExecutor) -> Determinism:
    """Compare logits on a few short random prompts. Uses the executor's rows, so nothing may be in them."""
    rows = min(executor.rows, len(_LENGTHS))
    longest = max(1, min(executor.capacity - 1, max(_LENGTHS)))
    ids = np.random.default_rng(0).integers(0, executor.vocab_size, longest)
    lengths = np.minimum(np.array(_LENGTHS[:rows]), longest)
    last = rows - 1
    pieces = _in_pieces(executor, last, ids[: lengths[last]])
    wholes = [executor.prefill(row, 0, ids[:length]).copy() for row, length in enumerate(lengths)]
    tokens = ids[:rows]
    equal = _prefill_together(executor, ids, lengths, wholes)
    together = executor.decode(tokens, lengths).copy()
    alone = []
    for row in range(rows):
        executor.move(row, 0, int(lengths[row]))
        alone.append(executor.decode(tokens[row : row + 1], lengths[row : row + 1])[0].copy())
    for row in range(rows):
        executor.release(row)
    return Determinism(np.array_equal(pieces, wholes[last]), equal and np.array_equal(np.stack(alone), together))


def _prefill_together(executor: StepExecutor, ids: IntArray, lengths: IntArray, wholes: list[FloatArray]) -> bool:
    """Whether all prompts in one run give the same; the rows hold them afterwards."""
    batching = batch_prefill_of(executor)
    if batching is None or lengths.min() < MIN_CHUNK:
        return True
    logits = batching.prefill_batch(0, [0] * len(lengths), [ids[:length] for length in lengths])
    return np.array_equal(logits, np.stack(wholes))


def _in_pieces(executor: StepExecutor, row: int, ids: IntArray) -> FloatArray:
    starts = list(range(0, max(1, len(ids) - 1), _CHUNK))
    for start, stop in zip(starts, [*starts[1:], len(ids)], strict=True):
        logits = executor.prefill(row, start, ids[start:stop])
    return logits.copy()
