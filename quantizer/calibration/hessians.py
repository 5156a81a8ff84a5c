"""Hessians of every matrix's inputs, one decoder layer in memory at a time.

H = XᵀX / tokens, X the inputs `[tokens, K]` of a matrix. The product is computed inside the graph; what leaves it is
`[K, K]`. Hidden states between layers are spilled to the work folder, so memory does not grow with the text, and a run
that was killed goes on at the layer it had reached.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from runtime.bundle.bundle import Bundle
from runtime.errors import QuantizationError

from ..graph.experts import find_experts
from ..graph.graphs import WEIGHTS_NAME, prefill_graph
from ..storage.matrix import Floats
from .expert_hessians import ExpertHessians, Seen
from .hessian_graph import add_hessians, add_inputs_of
from .segments import Arrays, Cut, Segment, body, empty_cache_feeds, find_cut

_HEAD = "head"
_TOGETHER = 2048  # tokens in a run: beyond, products gain nothing
_FORMAT = (
    b"tokens weighted by the stream, experts borrow tokens"  # of the Hessians: a work folder with others is begun anew
)
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Step:
    """How far a calibration is."""

    layer: int
    layers: int
    tokens: int
    seconds_left: float


class Hessians:
    """The Hessians of one model on one text, on disk, by weight name."""

    def __init__(self, log: "_Log", files: dict[str, str], tokens: int, experts: ExpertHessians) -> None:
        self._folder = log.folder
        self._files = files
        self.fingerprint = log.fingerprint
        self.tokens = tokens
        self.experts = experts

    def __contains__(self, weight: str) -> bool:
        return weight in self._files

    def read(self, weight: str) -> Floats:
        """`[K, K]`, float32."""
        hessian: Floats = np.load(self._folder / self._files[weight])
        return hessian

    def diagonal(self, weight: str) -> Floats:
        """Mean squares of the inputs, `[K]`."""
        mapped = np.load(self._folder / self._files[weight], mmap_mode="r")
        return np.array(mapped.diagonal(), np.float32)


def collect_hessians(
    bundle: Bundle, chunks: IntArray, work: Path, progress: Callable[[Step], None] | None = None
) -> Hessians:
    """Run `chunks` `[chunks, sequence]` through the prefill graph, layer by layer.

    Args:
        bundle: float weights.
        chunks: token ids.
        work: folder for Grams and hidden states; what an interrupted run left there is used if it fits.
        progress: told after each layer.
    """
    graph = prefill_graph(bundle)
    cut = find_cut(graph)
    log = _Log(work, _fingerprint(bundle, chunks))
    layers = len(cut.borders) + 1
    batches = _batches(chunks, graph)
    started, first = time.monotonic(), log.layers_done
    for layer in range(first, layers):
        _run_layer(bundle, graph, cut, layer, batches, log)
        if progress:
            each = (time.monotonic() - started) / (layer + 1 - first)
            progress(Step(layer + 1, layers, chunks.size, each * (layers - layer - 1)))
    heads = {str(value.name): f"{_HEAD}.npy" for value in _head_weights(cut)}
    return Hessians(log, log.files | heads, chunks.size, ExpertHessians(_seen(graph, log)))


def _batches(chunks: IntArray, graph: ir.Graph) -> IntArray:
    """`[batches, chunks of each, sequence]`; experts that are computed one by one for all tokens get a chunk a run."""
    most = 1 if any(find_experts(graph)) else max(1, _TOGETHER // chunks.shape[1])
    together = max(size for size in range(1, most + 1) if len(chunks) % size == 0)
    return chunks.reshape(-1, together, chunks.shape[1])


def _run_layer(bundle: Bundle, graph: ir.Graph, cut: Cut, layer: int, batches: IntArray, log: "_Log") -> None:
    model = body(graph, cut, layer, layer + 1)
    crossing = [str(value.name) for value in model.graph.outputs]
    readers = add_hessians(model.graph)
    mixtures = [(experts, add_inputs_of(model.graph, experts)) for experts in find_experts(model.graph)]
    segment = Segment(model, bundle.folder)
    sums: dict[str, npt.NDArray[np.float64]] = {}
    for index, ids in enumerate(batches):
        out = segment(empty_cache_feeds(bundle, ids, segment.inputs) | log.states(layer, index))
        log.spill(f"layer{layer + 1}", index, len(batches), {name: out[name] for name in crossing})
        for experts, names in mixtures:
            log.spill(f"experts.{experts.name}", index, len(batches), {name: out[name] for name in names})
        for name in readers.values():
            sums[name] = sums.get(name, 0.0) + out[name].astype(np.float64)
        if layer == len(cut.borders):
            hidden = out[crossing[0]].reshape(-1, out[crossing[0]].shape[-1])
            sums[_HEAD] = sums.get(_HEAD, 0.0) + (hidden.T @ hidden).astype(np.float64)
    hessians = {name: (total / batches.size).astype(np.float32) for name, total in sums.items()}
    _require_finite(layer, hessians)
    log.finish(layer, readers, hessians)


def _require_finite(layer: int, hessians: Arrays) -> None:
    if not all(np.isfinite(hessian).all() for hessian in hessians.values()):
        raise QuantizationError(
            f"layer {layer}: what its matrices read is not finite; a weight up to there is NaN, infinite or far too "
            "large. The source checkpoint is broken: export a sound one."
        )


def _seen(graph: ir.Graph, log: "_Log") -> dict[str, Seen]:
    found: dict[str, Seen] = {}
    for experts in find_experts(graph):
        seen = Seen(experts, tuple(log.spilled(f"experts.{experts.name}")))
        found |= {site.weight: seen for site in experts.sites}
    return found


def _head_weights(cut: Cut) -> list[ir.Value]:
    users = cut.head_input.consumers()
    return [node.inputs[1] for node in users if len(node.inputs) > 1 and node.inputs[1] is not None]


def _fingerprint(bundle: Bundle, chunks: IntArray) -> str:
    return sha256(_FORMAT + bundle.manifest.files[WEIGHTS_NAME].sha256.encode() + chunks.tobytes()).hexdigest()


def _write_row(path: Path, array: npt.NDArray[Any], index: int, count: int) -> None:
    """Write `array` as row `index` of the `count` in an .npy file; not through a map, which dies of a full disk."""
    if index == 0:
        np.lib.format.open_memmap(path, "w+", array.dtype, (count, *array.shape))
    with path.open("r+b") as file:
        file.seek(index * array.nbytes - count * array.nbytes, 2)
        file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


class _Log:
    """The work folder: `log.json` says which layers are done, and in which file each weight's Gram lies."""

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self.folder = folder
        self.fingerprint = fingerprint
        folder.mkdir(parents=True, exist_ok=True)
        self._state: dict[str, Any] = {"fingerprint": fingerprint, "layers": 0, "files": {}}
        path = folder / "log.json"
        if path.is_file():
            found = json.loads(path.read_text())
            if found["fingerprint"] == fingerprint:
                self._state = found

    @property
    def layers_done(self) -> int:
        return int(self._state["layers"])

    @property
    def files(self) -> dict[str, str]:
        return dict(self._state["files"])

    def states(self, layer: int, index: int) -> Arrays:
        """The values that cross into `layer`, of batch `index`."""
        paths = self.spilled(f"layer{layer}") if layer else []
        names = json.loads((self.folder / f"layer{layer}.json").read_text()) if layer else []
        return {name: np.load(path, mmap_mode="r")[index] for name, path in zip(names, paths, strict=True)}

    def spilled(self, name: str) -> list[Path]:
        """The files that `spill` wrote."""
        return sorted(self.folder.glob(f"{name}.[0-9][0-9].npy"))

    def spill(self, name: str, index: int, count: int, states: Arrays) -> None:
        """Keep some values of batch `index`, each kind in a file of its own."""
        for number, array in enumerate(states.values()):
            _write_row(self.folder / f"{name}.{number:02}.npy", array, index, count)
        (self.folder / f"{name}.json").write_text(json.dumps(list(states)))

    def finish(self, layer: int, readers: dict[str, str], hessians: Arrays) -> None:
        """Write a layer's Grams, then say so, then forget the states before it."""
        files = {name: f"gram{layer}.{i}.npy" for i, name in enumerate(hessians)} | {_HEAD: f"{_HEAD}.npy"}
        for name, hessian in hessians.items():
            np.save(self.folder / files[name], hessian)
        self._state["files"] |= {weight: files[name] for weight, name in readers.items()}
        self._state["layers"] = layer + 1
        temporary = self.folder / "log.json.new"
        temporary.write_text(json.dumps(self._state))
        temporary.replace(self.folder / "log.json")
        for path in self.folder.glob(f"layer{layer}.*"):
            path.unlink()
