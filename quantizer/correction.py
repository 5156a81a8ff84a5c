"""Corrected targets: what reaches a layer has lost something already, and its weights can make up for some of it.

After GPTAQ (Li et al., 2025, arXiv:2504.02692). The float model and the quantized one run side by side, layer by layer.
With Xf and Xq `[tokens, K]` what a matrix reads in the two, W Xfᵀ is wanted and Xq is at hand. The least squares answer
is W C Hq⁻¹ with C = XfᵀXq and Hq = XqᵀXq; going half of the way there, damped, was best:

    W* = W + ½ W (C − Hq) (Hq + 0.05 mean(diag Hq) I)⁻¹

Within a layer the float weights are used for both streams.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from runtime.bundle import Bundle

from .gram_graph import add_pair_grams
from .matrix import Floats
from .segments import Arrays, Segment, body, empty_cache_feeds, find_cut

_STEP = 0.5
_DAMPING = 0.05
IntArray = npt.NDArray[np.int64]


class Correction:
    """Moves the targets of one layer after the other; layers must be asked for in order.

    Args:
        bundle: float weights.
        graph: its prefill graph.
        chunks: `[chunks, sequence]` of token ids.
        work: folder for hidden states between layers.
    """

    def __init__(self, bundle: Bundle, graph: ir.Graph, chunks: IntArray, work: Path) -> None:
        self._bundle = bundle
        self._chunks = chunks
        self._graph, self._cut = graph, find_cut(graph)
        self._models = [self._piece(layer) for layer in range(len(self._cut.borders) + 1)]
        self._states = _States(work)
        self._layer = -1
        self._moves: dict[str, Floats] = {}
        self._quantized: dict[str, npt.NDArray[Any]] = {}

    def correct(self, name: str, weight: Floats) -> Floats:
        """The target that stands in for `weight` `[N, K]`, not rearranged; the same where nothing is known."""
        while self._layer + 1 < len(self._models) and name not in self._moves and self._is_ahead(name):
            self._advance()
        return weight + weight @ self._moves[name] if name in self._moves else weight

    def put(self, name: str, array: npt.NDArray[Any]) -> None:
        """What a weight became, in the layout of the file; later layers are fed by it."""
        self._quantized[name] = array

    def _is_ahead(self, name: str) -> bool:
        return any(name in model.graph.initializers for model in self._models[self._layer + 1 :])

    def _piece(self, layer: int) -> ir.Model:
        return body(self._graph, self._cut, layer, layer + 1)

    def _advance(self) -> None:
        if self._layer >= 0:
            self._run_quantized()
        self._layer += 1
        self._measure()

    def _run_quantized(self) -> None:
        model = self._models[self._layer]
        replaced = {name: array for name, array in self._quantized.items() if name in model.graph.initializers}
        segment = Segment(model, self._bundle.folder, replaced)
        for index, ids in enumerate(self._chunks):
            out = segment(empty_cache_feeds(self._bundle, ids[None]) | self._states.read("quantized", index))
            self._states.write("quantized", index, out)
        self._states.finish("quantized")
        self._quantized = {name: array for name, array in self._quantized.items() if self._is_ahead(name)}

    def _measure(self) -> None:
        """Run both streams as a batch of two through the float layer, and keep the float one."""
        model = self._piece(self._layer)
        crossing = [str(value.name) for value in model.graph.outputs]
        readers = add_pair_grams(model.graph)
        segment = Segment(model, self._bundle.folder)
        sums: dict[str, npt.NDArray[np.float64]] = {}
        for index, ids in enumerate(self._chunks):
            both = _stack(self._states.read("float", index), self._states.read("quantized", index))
            out = segment(empty_cache_feeds(self._bundle, np.stack([ids, ids])) | both)
            self._states.write("float", index, {name: _first(out[name]) for name in crossing})
            for names in readers.values():
                for name in names:
                    sums[name] = sums.get(name, 0.0) + out[name].astype(np.float64)
        self._states.finish("float")
        first = self._layer == 0  # both streams are the same so far
        self._moves = {} if first else {w: move(sums[gap], sums[gram]) for w, (gap, gram) in readers.items()}


class _States:
    """What crosses between layers, of each stream and chunk, on disk; nothing before the first layer."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names: dict[str, list[str]] = {}

    def read(self, stream: str, index: int) -> Arrays:
        if stream not in self._names:
            return {}
        with np.load(self._path(stream, index)) as arrays:
            return {name: arrays[f"arr_{number}"] for number, name in enumerate(self._names[stream])}

    def write(self, stream: str, index: int, states: Mapping[str, npt.NDArray[Any]]) -> None:
        np.savez(self._path(stream, index), *states.values())
        self._written = list(states)

    def finish(self, stream: str) -> None:
        """All chunks of a layer are written."""
        self._names[stream] = self._written

    def _path(self, stream: str, index: int) -> Path:
        return self._folder / f"{stream}.{index}.npz"


def _first(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The float stream's part of a batch of two."""
    return array[:1] if array.ndim > 1 and len(array) == 2 else array


def _stack(ours: Arrays, theirs: Arrays) -> Arrays:
    """Two batches of one as a batch of two; what has no batch is the same for both."""
    return {n: np.concatenate([a, theirs[n]]) if a.ndim > 1 and len(a) == 1 else a for n, a in ours.items()}


def move(gap: npt.NDArray[np.float64], gram: npt.NDArray[np.float64]) -> Floats:
    """½ (C − Hq) (Hq + damping)⁻¹, `gap` being C − Hq."""
    damped = gram + np.eye(len(gram)) * (_DAMPING * gram.diagonal().mean() or 1.0)
    result: Floats = (_STEP * np.linalg.solve(damped, gap.T).T).astype(np.float32)
    return result
