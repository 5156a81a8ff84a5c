"""Hessians of every matrix's inputs, one decoder layer in memory at a time.

H = XᵀX / tokens, X the inputs `[tokens, K]` of a matrix. The product is computed inside the graph; what leaves it is
`[K, K]`. Hidden states between layers are spilled to the work folder in 16 bits, so memory does not grow with the text,
and a run that was killed goes on at the layer it had reached.

Hessians of a large model take more than its weights. They are kept only if they take little, or where a folder was
named for them; else the states in front of each layer stay, and a layer runs again when its Hessians are asked for.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from runtime.bundle.bundle import Bundle
from runtime.errors import QuantizationError

from ..graph.experts import find_experts
from ..graph.graphs import prefill_graph
from ..storage.matrix import Floats
from ..storage.weights_file import WEIGHTS_NAME
from .expert_hessians import ExpertHessians, Seen
from .half import is_activation, read_row, to_half
from .hessian_graph import HESSIAN, SQUARES, add_hessians, add_inputs_of, hessian_bytes
from .routed_tokens import RoutedParts, RoutedTokens
from .segments import Arrays, Cut, Segment, body, empty_cache_feeds, find_cut

_HEAD = "head"
MOST_KEPT = 4 << 30  # bytes of Hessians in the work folder
_TOGETHER = 2048  # tokens in a run: beyond, products gain nothing
_FORMAT = b"Hessians of tokens weighted by the stream, states in 16 bits"  # a work folder of another is begun anew
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Step:
    """How far a calibration is."""

    layer: int
    layers: int
    tokens: int


class Hessians:
    """The Hessians of one model on one text, by weight name; on disk, or those of one layer at a time in memory."""

    def __init__(self, run: "_Run") -> None:
        self._run = run
        self._lock = Lock()
        self._made: tuple[int, Arrays] = (-1, {})
        self.fingerprint = run.log.fingerprint
        self.tokens = run.batches.size
        self._drawn: dict[str, tuple[RoutedTokens, ...]] = {}
        self.experts = self._of_experts()

    def __contains__(self, weight: str) -> bool:
        return weight in self._run.log.values

    def inputs_of(self, weight: str) -> tuple[int, str]:
        """The layer, and the value that the weight reads there: the same for weights with the same Hessian."""
        return self._run.log.values[weight]

    def read(self, weight: str) -> Floats:
        """`[K, K]`, float32."""
        layer, value = self._run.log.values[weight]
        path = self._run.log.path(layer, value, HESSIAN)
        if path.is_file():
            kept: Floats = np.load(path)
            return kept
        with self._lock:  # several matrices of a layer are under way at once
            if self._made[0] != layer:
                self._made = layer, self._run.hessians(layer)
            hessian: Floats = self._made[1][f"{value}.{HESSIAN}"]
        return hessian

    def draw(self, chunks: IntArray, work: Path) -> None:
        """Run further text through the layers, for the experts that saw too few tokens: they get all that they read of
        it, by which `experts` is made anew. What an interrupted run left in `work` is used if it fits.
        """
        lacking = self.experts.rare()
        digest = sha256(f"{self.fingerprint} {sorted(lacking.items())}".encode() + chunks.tobytes()).hexdigest()
        run = replace(self._run, batches=_batches(chunks, self._run.graph), log=_Log(work, digest, keep=True))
        for layer in range(run.log.layers_done, run.last_layer_of(lacking) + 1):
            run.route(layer, lacking)
        for experts in find_experts(run.graph):
            if only := lacking.get(experts.name):
                part = RoutedTokens(experts, tuple(run.log.spilled(f"experts.{experts.name}")), frozenset(only))
                self._drawn[experts.name] = (*self._drawn.get(experts.name, ()), part)
        self.fingerprint = digest
        self.experts = self._of_experts()

    def _of_experts(self) -> ExpertHessians:
        found: dict[str, Seen] = {}
        for experts in find_experts(self._run.graph):
            files = self._run.log.spilled(f"experts.{experts.name}")
            seen = Seen(experts, RoutedTokens(experts, tuple(files)), self._drawn.get(experts.name, ()))
            found |= {site.weight: seen for site in experts.sites}
        return ExpertHessians(found)

    def diagonal(self, weight: str) -> Floats:
        """Mean squares of the inputs, `[K]`."""
        squares: Floats = np.load(self._run.log.path(*self._run.log.values[weight], SQUARES))
        return squares


def collect_hessians(
    bundle: Bundle,
    chunks: IntArray,
    work: Path,
    progress: Callable[[Step], None] | None = None,
    *,
    most_kept: int = MOST_KEPT,
) -> Hessians:
    """Run `chunks` `[chunks, sequence]` through the prefill graph, layer by layer.

    Args:
        bundle: float weights.
        chunks: token ids.
        work: folder for Hessians and hidden states; what an interrupted run left there is used if it fits.
        progress: told after each layer.
        most_kept: bytes of Hessians that are kept in `work`; if all take more, none is.
    """
    graph = prefill_graph(bundle)
    log = _Log(work, _fingerprint(bundle, chunks), keep=hessian_bytes(graph) <= most_kept)
    run = _Run(bundle, graph, find_cut(graph), _batches(chunks, graph), log)
    for layer in range(log.layers_done, run.layers):
        run.through(layer)
        if progress:
            progress(Step(layer + 1, run.layers, chunks.size))
    return Hessians(run)


def _batches(chunks: IntArray, graph: ir.Graph) -> IntArray:
    """`[batches, chunks of each, sequence]`; experts that are computed one by one for all tokens get a chunk a run."""
    most = 1 if any(find_experts(graph)) else max(1, _TOGETHER // chunks.shape[1])
    together = max(size for size in range(1, most + 1) if len(chunks) % size == 0)
    return chunks.reshape(-1, together, chunks.shape[1])


@dataclass(frozen=True)
class _Run:
    """The model, its calibration text, and the results so far."""

    bundle: Bundle
    graph: ir.Graph
    cut: Cut
    batches: IntArray
    log: "_Log"

    @property
    def layers(self) -> int:
        return len(self.cut.borders) + 1

    def through(self, layer: int) -> None:
        """Run a layer for the first time: spill what crosses into the next one, and what its experts read."""
        model = body(self.graph, self.cut, layer, layer + 1)
        crossing = [str(value.name) for value in model.graph.outputs]
        readers = add_hessians(model.graph, whole=self.log.keep)
        mixtures = [(experts, add_inputs_of(model.graph, experts)) for experts in find_experts(model.graph)]
        sums = _Sums(self._head_of(layer), whole=self.log.keep)
        count = len(self.batches)
        for index, out in enumerate(self._outputs(model, layer)):
            self.log.spill(f"layer{layer + 1}", index, count, {name: out[name] for name in crossing})
            for experts, names in mixtures:
                self.log.spill(f"experts.{experts.name}", index, count, {name: out[name] for name in names})
            sums.add(out, readers)
        readers |= {str(value.name): _HEAD for value in _head_weights(self.cut)} if self._head_of(layer) else {}
        found = sums.means(self.batches.size)
        _require_finite(layer, found)
        self.log.finish(layer, readers, found)

    def route(self, layer: int, wanted: Mapping[str, Sequence[int]]) -> None:
        """Run a layer on further text: of what its experts read, spill the tokens that go to experts in `wanted`."""
        model = body(self.graph, self.cut, layer, layer + 1)
        crossing = [str(value.name) for value in model.graph.outputs]
        mixtures = [
            (experts, add_inputs_of(model.graph, experts), RoutedParts(experts, wanted[experts.name]))
            for experts in find_experts(model.graph)
            if experts.name in wanted
        ]
        for index, out in enumerate(self._outputs(model, layer)):
            self.log.spill(f"layer{layer + 1}", index, len(self.batches), {name: out[name] for name in crossing})
            for _, names, parts in mixtures:
                parts.add([out[name] for name in names])
        for experts, names, parts in mixtures:
            self.log.spill(f"experts.{experts.name}", 0, 1, dict(zip(names, parts.joined(), strict=True)))
        self.log.finish(layer, {}, {})

    def last_layer_of(self, modules: Collection[str]) -> int:
        """The last layer that has one of these modules of experts; -1 if none has."""
        held = (
            layer
            for layer in reversed(range(self.layers))
            if any(e.name in modules for e in find_experts(body(self.graph, self.cut, layer, layer + 1).graph))
        )
        return next(held, -1)

    def hessians(self, layer: int) -> Arrays:
        """The Hessians of a layer that was run before, by value."""
        model = body(self.graph, self.cut, layer, layer + 1)
        readers = add_hessians(model.graph)
        sums = _Sums(self._head_of(layer), whole=True)
        for out in self._outputs(model, layer):
            sums.add(out, readers)
        return sums.means(self.batches.size)

    def _outputs(self, model: ir.Model, layer: int) -> Iterator[Arrays]:
        segment = Segment(model, self.bundle.folder, provider=self.bundle.manifest.target.provider)
        for index, ids in enumerate(self.batches):
            yield segment(empty_cache_feeds(self.bundle, ids, segment.inputs) | self.log.states(layer, index))

    def _head_of(self, layer: int) -> str | None:
        """What the head reads, if the layer is the last."""
        return str(self.cut.hidden.name) if layer == self.layers - 1 else None


class _Sums:
    """Hessians and diagonals, summed over batches in float64."""

    def __init__(self, hidden: str | None, *, whole: bool) -> None:
        self._hidden = hidden
        self._parts = (SQUARES, HESSIAN) if whole else (SQUARES,)
        self._sums: dict[str, npt.NDArray[np.float64]] = {}

    def add(self, out: Arrays, readers: Mapping[str, str]) -> None:
        for value in set(readers.values()):
            for part in self._parts:
                self._add(f"{value}.{part}", out[f"{value}.{part}"])
        if self._hidden is not None:
            rows = out[self._hidden].reshape(-1, out[self._hidden].shape[-1])
            self._add(f"{_HEAD}.{SQUARES}", np.square(rows).sum(axis=0))
            if HESSIAN in self._parts:
                self._add(f"{_HEAD}.{HESSIAN}", rows.T @ rows)

    def means(self, tokens: int) -> Arrays:
        """Once, in the end: each sum is freed when its mean is made."""
        return {name: _mean(self._sums.pop(name), tokens) for name in [*self._sums]}

    def _add(self, name: str, values: Floats) -> None:
        """In place: the Hessian of 14,336 inputs takes 1.6 GB."""
        if name in self._sums:
            self._sums[name] += values
        else:
            self._sums[name] = values.astype(np.float64)


def _mean(total: npt.NDArray[np.float64], tokens: int) -> Floats:
    return np.divide(total, tokens, out=total).astype(np.float32)


def _require_finite(layer: int, hessians: Arrays) -> None:
    if not all(np.isfinite(hessian).all() for hessian in hessians.values()):
        raise QuantizationError(
            f"layer {layer}: what its matrices read is not finite; a weight up to there is NaN, infinite or far too "
            "large. The source checkpoint is broken: export a sound one."
        )


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
    """The work folder: `log.json` says which layers are done, and what value each weight reads in which layer."""

    def __init__(self, folder: Path, fingerprint: str, *, keep: bool) -> None:
        self.folder = folder
        self.fingerprint = fingerprint
        self.keep = keep
        folder.mkdir(parents=True, exist_ok=True)
        self._state: dict[str, Any] = {"fingerprint": fingerprint, "keep": keep, "layers": 0, "values": {}}
        path = folder / "log.json"
        if path.is_file():
            found = json.loads(path.read_text())
            if (found["fingerprint"], found.get("keep")) == (fingerprint, keep):
                self._state = found

    @property
    def layers_done(self) -> int:
        return int(self._state["layers"])

    @property
    def values(self) -> dict[str, tuple[int, str]]:
        """The layer and the name of what each weight reads."""
        return {weight: (layer, value) for weight, (layer, value) in self._state["values"].items()}

    def path(self, layer: int, value: str, part: str) -> Path:
        """The file of a Hessian, or of its diagonal."""
        return self.folder / f"{part}{layer}.{value.replace('/', '_')}.npy"

    def states(self, layer: int, index: int) -> Arrays:
        """The values that cross into `layer`, of batch `index`."""
        paths = self.spilled(f"layer{layer}") if layer else []
        names = json.loads((self.folder / f"layer{layer}.json").read_text()) if layer else []
        return {name: read_row(path, index) for name, path in zip(names, paths, strict=True)}

    def spilled(self, name: str) -> list[Path]:
        """The files that `spill` wrote."""
        return sorted(self.folder.glob(f"{name}.[0-9][0-9].npy"))

    def spill(self, name: str, index: int, count: int, states: Arrays) -> None:
        """Keep some values of batch `index`, each kind in a file of its own, activations in 16 bits."""
        for number, array in enumerate(states.values()):
            stored = to_half(array) if is_activation(array) else array
            _write_row(self.folder / f"{name}.{number:02}.npy", stored, index, count)
        (self.folder / f"{name}.json").write_text(json.dumps(list(states)))

    def finish(self, layer: int, readers: dict[str, str], found: Arrays) -> None:
        """Write a layer's Hessians, then say so, then forget the states before it if these were all it was for."""
        for name, array in found.items():
            value, _, part = name.rpartition(".")
            np.save(self.path(layer, value, part), array)
        self._state["values"] |= {weight: (layer, value) for weight, value in readers.items()}
        self._state["layers"] = layer + 1
        temporary = self.folder / "log.json.new"
        temporary.write_text(json.dumps(self._state))
        temporary.replace(self.folder / "log.json")
        for path in self.folder.glob(f"layer{layer}.*") if self.keep else ():
            path.unlink()
