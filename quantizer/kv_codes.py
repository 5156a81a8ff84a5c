"""Keys and values in 8 or 4 bits: one scale per layer, head and channel, from the largest value seen on a text.

The weights stay as they are. The graphs change in three places: GroupQueryAttention gets the scales and says how many
bits its cache has, and the cache ports get their new type.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from runtime.bundle import Bundle, new_bundle, open_bundle, write_manifest
from runtime.errors import QuantizationError
from runtime.executor import OnnxExecutor
from runtime.kv_sizes import kv_bytes_per_token
from runtime.manifest import Calibration, Graph, KVCache, Manifest
from runtime.ports import Port, cache_pairs
from runtime.step_executor import MAX_SCORED

from .calibration_text import Text
from .graphs import WEIGHTS_NAME, Graphs, add_initializer, load_graphs, save_graph
from .progress import Progress, silent
from .quantize import copy_other_files
from .weights_file import WeightsWriter, read_tensor

Bits = Literal[8, 4]
FloatArray = npt.NDArray[np.float32]

_KEY_SCALE, _VALUE_SCALE = 12, 13  # inputs of GroupQueryAttention
_PAST_KEY, _PAST_VALUE = 3, 4
_LARGEST_CODE = {8: 127, 4: 7}
_DTYPES: dict[int, tuple[Literal["int8", "uint8"], ir.DataType]] = {
    8: ("int8", ir.DataType.INT8),
    4: ("uint8", ir.DataType.UINT8),
}


@dataclass(frozen=True)
class CacheQuality:
    """The new cache against the old one on held-out text: KL in nats per token, share of equal first choices."""

    kl: float
    top1: float
    tokens: int


def quantize_cache(
    source: Path, target: Path, bits: Bits, text: Text, *, overwrite: bool = False, progress: Progress | None = None
) -> tuple[Manifest, CacheQuality]:
    """Write a copy of the bundle `source` whose keys and values are stored in `bits` bits.

    Args:
        source: a bundle whose cache holds floats.
        target: the new bundle's folder.
        bits: 8 or 4.
        text: what the scales are measured on, and what the result is compared on.
        overwrite: replace a bundle that is already there.
        progress: is told what is being done.

    Raises:
        QuantizationError: the cache is quantized already, or a head is too odd for two codes in a byte.
    """
    bundle, progress = open_bundle(source), progress or silent
    _require_possible(bundle, bits)
    largest = largest_values(bundle, text, progress)
    largest_code = np.float32(_LARGEST_CODE[bits])
    scales = {name: (np.maximum(top, 1e-6) / largest_code).astype(np.float32) for name, top in largest.items()}
    graphs = load_graphs(bundle)
    with new_bundle(target, overwrite=overwrite) as folder:
        for model in graphs.models.values():
            _edit(model.graph, scales, bits)
        _write(graphs, folder)
        copy_other_files(bundle, folder)
        manifest = write_manifest(folder, _describe(bundle.manifest, bits, text))
        quality = compare(bundle, open_bundle(folder), text.held_out, progress)
    return manifest, quality


def largest_values(bundle: Bundle, text: Text, progress: Progress) -> dict[str, FloatArray]:
    """The largest magnitude of every channel, `[kv_heads, head_dim]` for each past input's name."""
    names = [
        past.name
        for past, _ in cache_pairs(bundle.manifest.graphs.prefill.inputs, bundle.manifest.graphs.prefill.outputs)
    ]
    tops: list[FloatArray] = []
    with _opened(bundle) as executor:
        for place, chunk in enumerate(text.chunks):
            progress("measuring keys and values", place, len(text.chunks))
            executor.prefill(0, 0, chunk[: executor.capacity])
            found = [np.abs(part).max(axis=1) for part in executor.read(0, 0, min(len(chunk), executor.capacity))]
            tops = [np.maximum(old, new) for old, new in zip(tops or found, found, strict=True)]
    return dict(zip(names, tops, strict=True))


def compare(old: Bundle, new: Bundle, chunks: npt.NDArray[np.int64], progress: Progress) -> CacheQuality:
    """Both bundles over the same text, in pieces, so that nearly all attention reads the stored cache."""
    divergences: list[FloatArray] = []
    equal = 0
    with _opened(old) as before, _opened(new) as after:
        for place, chunk in enumerate(chunks):
            progress("comparing", place, len(chunks))
            for start in range(0, min(len(chunk), before.capacity), MAX_SCORED - 1):
                ids = chunk[start : min(start + MAX_SCORED - 1, before.capacity)]
                expected, got = (_log_softmax(e.score(0, start, ids)) for e in (before, after))
                divergences.append((np.exp(expected) * (expected - got)).sum(axis=1))
                equal += int((expected.argmax(axis=1) == got.argmax(axis=1)).sum())
    everything = np.concatenate(divergences)
    return CacheQuality(float(everything.mean()), equal / len(everything), len(everything))


def _edit(graph: ir.Graph, scales: dict[str, FloatArray], bits: Bits) -> None:
    for node in graph:
        if node.op_type == "GroupQueryAttention":
            _edit_attention(graph, node, scales, bits)
    ports = {value.name for value in graph.inputs if value.name in scales}
    presents = {node.outputs[i] for node in graph if node.op_type == "GroupQueryAttention" for i in (1, 2)}
    for value in [value for value in graph.inputs if value.name in ports] + list(presents):
        assert value.shape is not None
        value.type = ir.TensorType(_DTYPES[bits][1])
        value.shape = ir.Shape([*list(value.shape)[:3], int(value.shape[3]) * bits // 8])  # type: ignore[arg-type]


def _edit_attention(graph: ir.Graph, node: ir.Node, scales: dict[str, FloatArray], bits: Bits) -> None:
    node.resize_inputs(max(len(node.inputs), _VALUE_SCALE + 1))
    for past, place, kind in ((_PAST_KEY, _KEY_SCALE, "k"), (_PAST_VALUE, _VALUE_SCALE, "v")):
        value = node.inputs[past]
        assert value is not None
        assert value.name is not None
        array = scales[value.name][None, :, None, :].astype(np.float32)  # [1, kv_heads, 1, head_dim]
        tensor = ir.tensor(array, name=f"{node.name}.{kind}_scale")
        node.replace_input_with(place, add_initializer(graph, tensor))
        node.attributes.add(ir.AttrString(f"{kind}_quant_type", "PER_CHANNEL"))
    node.attributes.add(ir.AttrInt64("kv_cache_bit_width", bits))


def _write(graphs: Graphs, folder: Path) -> None:
    """weights.bin again with the scales behind the weights, then both graphs over it."""
    with WeightsWriter(folder / WEIGHTS_NAME) as writer:
        for name, tensor in graphs.initializers().items():
            writer.add(name, read_tensor(tensor), tensor.dtype)
        for model in graphs.models.values():
            for name, value in model.graph.initializers.items():
                if name.endswith((".k_scale", ".v_scale")) and value.const_value is not None:
                    placed = writer.placed.get(name) or writer.add(name, value.const_value.numpy())
                    value.const_value = placed.tensor(WEIGHTS_NAME, folder)
    for file, model in graphs.models.items():
        save_graph(model, folder / file, writer.placed)


def _describe(manifest: Manifest, bits: Bits, text: Text) -> Manifest:
    dtype = _DTYPES[bits][0]
    cache = KVCache(
        layout=manifest.kv_cache.layout,
        dtype=dtype,
        bytes_per_token=kv_bytes_per_token(manifest.architecture.cache_rows, bits),
        bits=4 if bits == 4 else None,
        calibration=Calibration(text.name, int(text.chunks.size)),
    )
    graphs = replace(
        manifest.graphs,
        prefill=_with_cache(manifest.graphs.prefill, dtype, bits),
        decode=_with_cache(manifest.graphs.decode, dtype, bits),
    )
    return replace(manifest, kv_cache=cache, graphs=graphs)


def _with_cache(graph: Graph, dtype: Literal["int8", "uint8"], bits: Bits) -> Graph:
    def changed(port: Port) -> Port:
        if not port.role.endswith(("_key", "_value")):
            return port
        return replace(port, dtype=dtype, shape=(*port.shape[:3], int(port.shape[3]) * bits // 8))

    return replace(graph, inputs=tuple(map(changed, graph.inputs)), outputs=tuple(map(changed, graph.outputs)))


def _require_possible(bundle: Bundle, bits: Bits) -> None:
    manifest = bundle.manifest
    if manifest.kv_cache.dtype not in ("float32", "float16", "bfloat16"):
        raise QuantizationError(
            f"{bundle.folder}: keys and values are {manifest.kv_cache.dtype} already. Start from the bundle before."
        )
    if manifest.target.provider != "cpu":
        raise QuantizationError(f"{bundle.folder}: built for {manifest.target.provider}; this measures on cpu only.")
    odd = [layer.head_dim for layer in manifest.architecture.layers if layer.head_dim * bits % 8]
    if odd:
        raise QuantizationError(f"{bundle.folder}: heads of {odd[0]} channels cannot be packed in {bits} bits.")


@contextmanager
def _opened(bundle: Bundle) -> Iterator[OnnxExecutor]:
    executor = OnnxExecutor(bundle, rows=1)
    try:
        yield executor
    finally:
        executor.close()


def _log_softmax(logits: Any) -> FloatArray:
    shifted = logits - logits.max(axis=1, keepdims=True)
    result: FloatArray = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result
