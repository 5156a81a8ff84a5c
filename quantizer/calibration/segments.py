"""Cut the prefill graph into pieces that run one after the other, each small enough for memory.

```
input_ids ─ layer 0 ─ … ─ layer n−1 ─ final norm ─ hidden [batch, sequence, H]     the body, in segments
hidden rows [rows, H] ─ head ─ logits [rows, vocabulary]                            the head, for any rows
```
The gather by `logits_index` between the two is left out: it is what keeps one position of each sequence.
"""

import re
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from runtime.bundle.bundle import Bundle
from runtime.bundle.manifest import TensorSpec
from runtime.errors import QuantizationError
from runtime.ort.session import onnxruntime, provider_list, translated

_POOLED = re.compile(r"(pooling|dense|score|normalize)(\.|$)")
_LAYER = re.compile(r"\.layers\.(\d+)(\.|$)")
Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Cut:
    """Where the graph is cut.

    Attributes:
        hidden: the value that the head reads, at all positions.
        head_input: what takes its place in front of the head, `[rows, H]`.
        borders: for each layer but the first, the values that cross from the layers before it into it and beyond.
    """

    hidden: ir.Value
    head_input: ir.Value
    borders: tuple[tuple[ir.Value, ...], ...]


def find_cut(graph: ir.Graph) -> Cut:
    """Find the head and the layer borders of a prefill graph.

    Raises:
        QuantizationError: the graph is not laid out as the exporter lays it out.
    """
    index = next((value for value in graph.inputs if value.name == "logits_index"), None)
    if index is None and graph.outputs[0].name in ("embeddings", "scores"):
        return _pooled_cut(graph)
    if index is None:
        raise QuantizationError("prefill graph: no input logits_index, so its head cannot be cut off. Export again.")
    gathered: set[ir.Value] = {index}
    for node in graph:
        if not gathered.isdisjoint(node.inputs):
            others = [v for v in node.inputs if v is not None and v not in gathered and v.producer() is not None]
            if others:
                return Cut(others[0], node.outputs[0], tuple(_borders(graph, gathered)))
            gathered.update(node.outputs)
    raise QuantizationError("prefill graph: nothing is gathered by logits_index, so its head cannot be cut off.")


def _pooled_cut(graph: ir.Graph) -> Cut:
    """Of a graph that reads whole texts: in front of its pooling, whose every value belongs behind the last border."""
    behind = [node for node in graph if _POOLED.match(node.name or "")]
    outputs = {value for node in behind for value in node.outputs}
    before = [v for node in behind for v in node.inputs if v is not None and v.producer() and v not in outputs]
    if not before:
        raise QuantizationError("prefill graph: nothing is pooled, so it cannot be cut into layers. Export again.")
    return Cut(before[0], before[0], tuple(_borders(graph, outputs)))


def body(graph: ir.Graph, cut: Cut, first: int, last: int) -> ir.Model:
    """Layers `first` to `last` (exclusive) as a model of their own; embedding and final norm go with the outer ones."""
    layers = len(cut.borders) + 1
    inputs = [value for value in graph.inputs if value.name != "logits_index"]
    if first:
        inputs += cut.borders[first - 1]
    outputs = [cut.hidden] if last == layers else list(cut.borders[last - 1])
    return _extract(graph, inputs, outputs)


def head(graph: ir.Graph, cut: Cut) -> ir.Model:
    """Hidden rows `[rows, H]` → logits `[rows, vocabulary]`."""
    return _extract(graph, [cut.head_input], [graph.outputs[0]])


class Segment:
    """A piece of a graph in a session; its weights are read from the bundle's weights.bin.

    Args:
        model: the piece.
        folder: where weights.bin lies.
        replaced: initializers to use instead of those of the file, by name.
        prepacked: whether weights are copied into the order that kernels like, and buffers kept for the next run.
            Products of many rows gain little from it in floating point, and many pieces that are open at once then
            hold all weights twice and their buffers besides; packed codes need it.
        provider: that the graph was exported for.
    """

    def __init__(
        self,
        model: ir.Model,
        folder: Path,
        replaced: Mapping[str, npt.NDArray[Any]] | None = None,
        *,
        prepacked: bool = True,
        provider: str = "cpu",
    ) -> None:
        module = onnxruntime()
        options = module.SessionOptions()
        options.enable_mem_pattern = False
        # Many pieces run in turn: threads of the last one that still spin would take the cores from the next.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        if not prepacked:
            options.add_session_config_entry("session.disable_prepacking", "1")
            options.enable_cpu_mem_arena = False
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
        # ONNX Runtime refers to these arrays without owning them.
        self._kept = {n: module.OrtValue.ortvalue_from_numpy(a) for n, a in (replaced or {}).items()}
        for name, held in self._kept.items():
            options.add_initializer(name, held)
        with translated("loading a piece of the prefill graph"):
            data = ir.to_proto(model).SerializeToString()
            self._session = module.InferenceSession(data, options, providers=provider_list(provider))
        self.inputs = [node.name for node in self._session.get_inputs()]
        self.outputs = [node.name for node in self._session.get_outputs()]

    def __call__(self, feeds: Mapping[str, npt.NDArray[Any]]) -> Arrays:
        """Run on those of `feeds` that this piece reads."""
        with translated("running a piece of the prefill graph"):
            results = self._session.run(self.outputs, {name: feeds[name] for name in self.inputs})
        return dict(zip(self.outputs, results, strict=True))


def empty_cache_feeds(bundle: Bundle, ids: npt.NDArray[np.int64], names: Collection[str] | None = None) -> Arrays:
    """Inputs of the prefill graph for full sequences `ids` `[batch, sequence]` that start from an empty cache: all, or
    those called `names`.
    """
    batch, count = ids.shape
    feeds: Arrays = {}
    for port in bundle.manifest.graphs.prefill.inputs:
        if names is not None and port.name not in names:
            continue
        if port.role == "input_ids":
            feeds[port.name] = ids
        elif port.role == "seqlens_k":
            feeds[port.name] = np.full(batch, count - 1, np.int32)
        elif port.role == "query_seqlens":
            feeds[port.name] = np.full(batch, count, np.int32)
        elif port.role == "total_sequence_length":
            feeds[port.name] = np.array(count, np.int32)
        elif port.role in ("past_key", "past_value", "past_state"):
            feeds[port.name] = np.zeros(_past_shape(port, batch, count), port.dtype)
    return feeds


def _past_shape(port: TensorSpec, batch: int, count: int) -> Sequence[int]:
    sizes = {"batch": batch, "capacity": count}
    return [size if isinstance(size, int) else sizes[size] for size in port.shape]


def _borders(graph: ir.Graph, left_out: set[ir.Value]) -> list[tuple[ir.Value, ...]]:
    """Values that cross each layer's beginning, layer 1 first; those of the cut itself are left out.

    What no input decides (tables computed from constants) does not cross: every piece computes it again.
    """
    stage = _stages(graph)
    layers = max(stage.values())
    crossing: list[list[ir.Value]] = [[] for _ in range(layers)]
    decided = set(graph.inputs)
    for node in graph:
        if decided.isdisjoint(node.inputs):
            continue
        decided.update(node.outputs)
        for value in (v for v in node.outputs if v not in left_out):
            last = max((stage[user] for user in value.consumers()), default=0)
            for border in range(stage[node], last):
                crossing[border].append(value)
    return [tuple(values) for values in crossing]


def _stages(graph: ir.Graph) -> dict[ir.Node, int]:
    """The layer in which each node runs: its own by name, never before those it reads from."""
    stage: dict[ir.Node, int] = {}
    for node in graph:
        match = _LAYER.search(node.name or "")
        own = int(match[1]) if match else 0
        before = [stage[producer] for value in node.inputs if value and (producer := value.producer()) is not None]
        stage[node] = max([own, *before])
    return stage


def _extract(graph: ir.Graph, inputs: Sequence[ir.Value], outputs: Sequence[ir.Value]) -> ir.Model:
    types = {value.name: _type_of(value) for value in (*inputs, *outputs) if value.type is None}
    piece = ir.convenience.extract(graph, inputs=inputs, outputs=outputs)
    unread = [value for value in piece.inputs if not value.consumers() and value not in piece.outputs]
    for value in unread:  # caches of other layers
        piece.inputs.remove(value)
    for value in (*piece.inputs, *piece.outputs):
        value.type = value.type or types.get(value.name) or graph.outputs[0].type  # inside a graph none is needed
    return ir.Model(piece, ir_version=10)


def _type_of(value: ir.Value) -> ir.TypeProtocol | None:
    """The type of activations: that of the nearest floats which a value is computed from."""
    waiting, seen = deque([value]), {value}
    while waiting:
        current = waiting.popleft()
        if current.dtype is not None and current.dtype.is_floating_point():
            return ir.TensorType(current.dtype)
        producer = current.producer()
        if producer is not None and producer.op_type == "Cast":
            return ir.TensorType(ir.DataType(producer.attributes.get_int("to")))
        found = [each for each in (producer.inputs if producer else ()) if each is not None and each not in seen]
        seen.update(found)
        waiting.extend(found)
    return None
