"""Keys and values in 8 or 4 bits: one scale per layer, head and channel, from the largest value seen on a text.

The weights stay as they are. The graphs change in three places: GroupQueryAttention gets the scales and says how many
bits its cache has, and the cache ports get their new type.
"""

from dataclasses import replace
from pathlib import Path
from typing import Literal

import onnx_ir as ir

from runtime.adapters.fitting import require_no_adapter_inputs
from runtime.bundle import json_codec
from runtime.bundle.bundle import Bundle, new_bundle, open_bundle, write_manifest
from runtime.bundle.kv_layout import kv_bytes_per_token
from runtime.bundle.manifest import Calibration, Graph, KVCache, Manifest
from runtime.bundle.manifest import Graphs as ManifestGraphs
from runtime.bundle.sequence_task import require_generation
from runtime.bundle.tensor_specs import TensorSpec
from runtime.errors import QuantizationError

from ..calibration.data import Text
from ..graph.graphs import Graphs, add_initializer, load_graphs, prefill_graph
from ..progress import Progress, silent
from ..recipe import CacheText, decode_recipe
from ..storage.bundle_files import copy_other_files, translated
from ..storage.matrix import Floats
from ..storage.weights_file import WEIGHTS_NAME, WeightsWriter
from .quality import CacheQuality, compare_caches
from .rope_pairs import attentions, find_rope_pairs
from .scales import measure_scales

Bits = Literal[8, 4]

_KEY_SCALE, _VALUE_SCALE = 12, 13  # inputs of GroupQueryAttention
_PAST_KEY, _PAST_VALUE = 3, 4
_LARGEST_CODE = {8: 127, 4: 7}
_DTYPES: dict[int, tuple[Literal["int8", "uint8"], ir.DataType]] = {
    8: ("int8", ir.DataType.INT8),
    4: ("uint8", ir.DataType.UINT8),
}


def bits_of(kv: Literal["int8", "int4"]) -> Bits:
    """Bits of keys and values that a recipe means."""
    return 8 if kv == "int8" else 4


def quantize_cache(
    source: Path,
    target: Path,
    bits: Bits,
    text: Text,
    *,
    chosen: CacheText | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> tuple[Manifest, CacheQuality]:
    """Write a copy of the bundle `source` whose keys and values are stored in `bits` bits.

    Args:
        source: a bundle whose cache holds floats.
        target: the new bundle's folder.
        bits: 8 or 4.
        text: what the scales are measured on, and what the result is compared on.
        chosen: how that text was chosen, for the recipe of a quantized bundle.
        overwrite: replace a bundle that is already there.
        progress: is told what is being done.

    Raises:
        QuantizationError: the cache is quantized already, or a head is too odd for two codes in a byte.
    """
    bundle, progress = open_bundle(source), progress or silent
    require_storable(bundle, bits)
    with translated(), new_bundle(target, overwrite=overwrite) as folder:
        copy_other_files(bundle, folder)
        manifest = store_cache(Bundle(folder, bundle.manifest), bits, text, progress)
        if chosen is not None and manifest.quantization is not None:
            known = {name: entry.sha256 for name, entry in manifest.files.items()}
            manifest = write_manifest(folder, _with_recipe(manifest, bits, chosen, text), known=known)
        quality = compare_caches(bundle, open_bundle(folder), text.held_out, progress)
    return manifest, quality


def _with_recipe(manifest: Manifest, bits: Bits, chosen: CacheText, text: Text) -> Manifest:
    """The manifest whose recipe, where the weights have one, makes this cache again."""
    assert manifest.quantization is not None
    try:
        recipe = decode_recipe(manifest.quantization.recipe)
    except (ValueError, json_codec.StrictJsonError):
        return manifest  # codes of the checkpoint's own
    used = replace(chosen, text_sha256=text.file_sha256, tokens_sha256=text.tokens_sha256)
    with_cache = replace(recipe, kv="int8" if bits == 8 else "int4", kv_text=used)
    return replace(manifest, quantization=replace(manifest.quantization, recipe=json_codec.encode(with_cache)))


def store_cache(bundle: Bundle, bits: Bits, text: Text, progress: Progress) -> Manifest:
    """Make `bundle`, which is being written, one with keys and values in `bits` bits, by scales measured on `text`.

    The scales are measured on the weights as they are stored.
    """
    graphs = load_graphs(bundle)
    pairs = find_rope_pairs(prefill_graph(bundle, graphs))
    scales = measure_scales(bundle, pairs, text.chunks, _LARGEST_CODE[bits], progress)
    for model in graphs.models.values():
        _edit(model.graph, scales, bits)
    known = {WEIGHTS_NAME: _write(graphs, bundle.folder)}
    return write_manifest(bundle.folder, _describe(bundle.manifest, bits, text), known=known)


def _edit(graph: ir.Graph, scales: dict[str, Floats], bits: Bits) -> None:
    values = [value for value in graph.inputs if value.name in scales]
    for node in attentions(graph):
        _edit_attention(graph, node, scales, bits)
        values += node.outputs[1:]
    for value in values:
        assert value.shape is not None
        value.type = ir.TensorType(_DTYPES[bits][1])
        value.shape = ir.Shape([*list(value.shape)[:3], int(value.shape[3]) * bits // 8])  # type: ignore[arg-type]


def _edit_attention(graph: ir.Graph, node: ir.Node, scales: dict[str, Floats], bits: Bits) -> None:
    node.resize_inputs(max(len(node.inputs), _VALUE_SCALE + 1))
    for past, place, kind in ((_PAST_KEY, _KEY_SCALE, "k"), (_PAST_VALUE, _VALUE_SCALE, "v")):
        value = node.inputs[past]
        assert value is not None
        array = scales[str(value.name)][None, :, None, :]  # [1, kv_heads, 1, head_dim]
        tensor = ir.tensor(array, name=f"{node.name}.{kind}_scale")
        node.replace_input_with(place, add_initializer(graph, tensor))
        node.attributes.add(ir.AttrString(f"{kind}_quant_type", "PER_CHANNEL"))
    node.attributes.add(ir.AttrInt64("kv_cache_bit_width", bits))


def _write(graphs: Graphs, folder: Path) -> str:
    """Add the scales behind the weights in weights.bin, and write both graphs anew; return the hash of weights.bin."""
    with WeightsWriter(folder / WEIGHTS_NAME, append=True) as writer:
        for model in graphs.models.values():
            for name, value in model.graph.initializers.items():
                if name.endswith((".k_scale", ".v_scale")) and value.const_value is not None:
                    placed = writer.placed.get(name) or writer.add(name, value.const_value.numpy())
                    value.const_value = placed.tensor(WEIGHTS_NAME, folder)
    for file, model in graphs.models.items():
        ir.save(model, folder / file)
    return writer.sha256


def _describe(manifest: Manifest, bits: Bits, text: Text) -> Manifest:
    dtype = _DTYPES[bits][0]
    cache = KVCache(
        layout=manifest.kv_cache.layout,
        dtype=dtype,
        bytes_per_token=kv_bytes_per_token(manifest.architecture.cache_rows, bits),
        bits=4 if bits == 4 else None,
        calibration=Calibration(text.name, int(text.chunks.size)),
    )
    graphs = ManifestGraphs(
        **{phase: _with_cache(graph, dtype, bits) for phase, graph in manifest.graphs.present.items()}
    )
    return replace(manifest, kv_cache=cache, graphs=graphs, quality=None)  # that was measured with the old cache


def _with_cache(graph: Graph, dtype: Literal["int8", "uint8"], bits: Bits) -> Graph:
    def changed(port: TensorSpec) -> TensorSpec:
        if not port.role.endswith(("_key", "_value")):
            return port
        return replace(port, dtype=dtype, shape=(*port.shape[:3], int(port.shape[3]) * bits // 8))

    return replace(graph, inputs=tuple(map(changed, graph.inputs)), outputs=tuple(map(changed, graph.outputs)))


def require_storable(bundle: Bundle, bits: Bits) -> None:
    """A float cache on the CPU, whose heads fill whole bytes, and which each layer has for itself.

    Raises:
        QuantizationError: it is not.
    """
    manifest = bundle.manifest
    require_generation(bundle, "a quantized cache")
    require_no_adapter_inputs(bundle, "a quantized cache")
    if manifest.kv_cache.dtype not in ("float32", "float16", "bfloat16"):
        raise QuantizationError(
            f"{bundle.folder}: keys and values are {manifest.kv_cache.dtype} already. Start from the bundle before."
        )
    if manifest.target.provider != "cpu":
        raise QuantizationError(f"{bundle.folder}: built for {manifest.target.provider}; this measures on cpu only.")
    odd = [layer.head_dim for layer in manifest.architecture.layers if layer.head_dim * bits % 8]
    if odd:
        raise QuantizationError(f"{bundle.folder}: heads of {odd[0]} channels cannot be packed in {bits} bits.")
    if _borrows(prefill_graph(bundle)):
        raise QuantizationError(
            f"{bundle.folder}: some layers attend to the keys and values of others, which ONNX Runtime cannot read in "
            "codes. Leave this model's cache as it is."
        )


def _borrows(graph: ir.Graph) -> bool:
    """Whether a layer reads keys that another one has just written."""
    pasts = [node.inputs[_PAST_KEY] for node in attentions(graph)]
    return not all(past is not None and past.is_graph_input() for past in pasts)
