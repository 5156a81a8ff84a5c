"""How large keys and values become: what the steps of their codes are made of."""

from contextlib import closing

import numpy as np

from runtime.bundle.bundle import Bundle
from runtime.bundle.tensor_specs import cache_pairs
from runtime.ort.executor import OnnxExecutor

from ..calibration.data import IntArray
from ..progress import Progress
from ..storage.matrix import Floats
from .rope_pairs import RopePairs

_LEAST = 1e-6  # of a channel that is 0 throughout the text


def measure_scales(
    bundle: Bundle, pairs: dict[str, RopePairs], chunks: IntArray, largest_code: int, progress: Progress
) -> dict[str, Floats]:
    """The step between two codes of each channel, `[kv_heads, head_dim]` for each past input's name.

    Args:
        bundle: whose cache holds floats.
        pairs: of its prefill graph.
        chunks: token ids `[chunks, sequence]` to measure on.
        largest_code: that the largest value becomes.
        progress: is told of each chunk.
    """
    largest = largest_values(bundle, chunks, pairs, progress)
    return {name: (np.maximum(top, _LEAST) / largest_code).astype(np.float32) for name, top in largest.items()}


def largest_values(
    bundle: Bundle, chunks: IntArray, pairs: dict[str, RopePairs], progress: Progress
) -> dict[str, Floats]:
    """The largest magnitude of every channel, `[kv_heads, head_dim]` for each past input's name; at any position for
    those of `pairs`, at the positions of the text for all others."""
    ports = bundle.manifest.graphs.prefill
    names = [past.name for past, _ in cache_pairs(ports.inputs, ports.outputs)]
    largest: dict[str, Floats] = {}
    with closing(OnnxExecutor(bundle, slots=1)) as executor:
        for place, chunk in enumerate(chunks):
            progress("measuring keys and values", place, len(chunks))
            ids = chunk[: executor.capacity]
            executor.prefill(0, 0, ids)
            for name, part in zip(names, executor.read(0, 0, len(ids)), strict=True):
                top = _largest(part.astype(np.float32), pairs.get(name))
                largest[name] = np.maximum(largest.get(name, top), top)
    return largest


def _largest(values: Floats, pairs: RopePairs | None) -> Floats:
    """`[kv_heads, head_dim]` of `[kv_heads, n, head_dim]`."""
    top: Floats = np.abs(values).max(axis=1) if pairs is None else pairs.largest(values)
    return top
