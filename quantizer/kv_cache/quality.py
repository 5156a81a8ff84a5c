"""What a cache of codes costs: the distribution of the next token against that over a cache of floats."""

from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from runtime.bundle.bundle import Bundle
from runtime.ort.executor import OnnxExecutor
from runtime.ort.runner_protocol import MAX_SCORED

from ..calibration.data import IntArray
from ..progress import Progress
from ..storage.matrix import Floats

_PIECE = MAX_SCORED - 1


@dataclass(frozen=True)
class CacheQuality:
    """The new cache against the old one on held-out text: KL in nats per token, share of equal first choices.

    `tokens` were compared, in rows of `context`.
    """

    kl: float
    top1: float
    tokens: int
    context: int


def compare_caches(old: Bundle, new: Bundle, chunks: IntArray, progress: Progress) -> CacheQuality:
    """Both bundles over the same text, in pieces, so that nearly all attention reads the stored cache.

    The chunks stand in one row as far as the model's context reaches: far behind, keys have turned further than those
    that the scales were measured on.
    """
    ids, parts = chunks.reshape(-1), []
    with closing(OnnxExecutor(old, slots=1)) as before, closing(OnnxExecutor(new, slots=1)) as after:
        row = min(before.capacity, len(ids))
        for start, stop in _pieces(len(ids), row):
            progress("comparing", start, len(ids))
            expected, got = (_log_softmax(e.all_logits(0, start % row, ids[start:stop])) for e in (before, after))
            kl = (np.exp(expected) * (expected - got)).sum(axis=1)
            parts.append((kl, expected.argmax(axis=1) == got.argmax(axis=1)))
    every_kl, equal = (np.concatenate(column) for column in zip(*parts, strict=True))
    return CacheQuality(float(every_kl.mean()), float(equal.mean()), len(ids), row)


def _pieces(tokens: int, row: int) -> list[tuple[int, int]]:
    """Parts of a text that are scored at once, none of them across the end of a row."""
    starts = (at for first in range(0, tokens, row) for at in range(first, min(first + row, tokens), _PIECE))
    return list(pairwise([*starts, tokens]))


def _log_softmax(logits: Any) -> Floats:
    shifted = logits - logits.max(axis=1, keepdims=True)
    result: Floats = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result
