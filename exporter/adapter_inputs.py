"""Bundle in, bundle out: graphs that take the matrices of LoRA adapters as inputs, so that several share the weights.

```
y = x W            becomes   y = x W + ((x A) * row_mask) B
```
A is `[in, rank]` and B `[rank, out]`, `rank` being that of all adapters of a step side by side, and the mask, one for
each kind of module, says which of them each row of the batch has. A step without adapters takes zeros of rank 1.
"""

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtime.adapters.fitting import kind_of
from runtime.bundle.bundle import Bundle, new_bundle, open_bundle, write_manifest
from runtime.bundle.manifest import Graphs, Manifest
from runtime.bundle.sequence_task import require_generation
from runtime.errors import OptionError, UnsupportedError

from . import manifest as describe
from .options import ExportOptions

if TYPE_CHECKING:
    import onnx_ir as ir

# Families whose linear layers are the checkpoint's, side by side and with nothing multiplied in.
MODEL_TYPES = (
    "llama",
    "mistral",
    "ministral",
    "qwen2",
    "qwen3",
    "smollm3",
    "seed_oss",
    "gemma",
    "gemma2",
    "gemma3_text",
)
_LINEAR = re.compile(r"model\.layers\.\d+\.(self_attn\.(qkv|o)|mlp\.(gate_up|up|down))_proj")
MASK = "lora_mask"


def with_adapter_inputs(source: str | Path, output: str | Path, options: ExportOptions) -> Manifest:
    """Write the bundle `output`: the graphs of `source` with inputs for adapters, and the same weights.

    Args:
        source: a bundle for the CPU.
        output: the folder to create.
        options: nothing but `overwrite` is looked at; anything else is refused.

    Raises:
        UnsupportedError: a bundle whose weights adapters do not fit.
    """
    from quantizer.graph.graphs import load_graphs

    bundle = open_bundle(source)
    _require_possible(bundle, options)
    models = load_graphs(bundle).models
    for model in models.values():
        _add_inputs(model.graph)
    with new_bundle(output, overwrite=options.overwrite) as folder:
        _copy(bundle, models, folder)
        described = {
            phase: describe.describe_graph(models[graph.file].graph, graph.file)
            for phase, graph in bundle.manifest.graphs.present.items()
        }
        operators = {f"{n.domain or 'ai.onnx'}::{n.op_type}" for model in models.values() for n in model.graph}
        target = replace(bundle.manifest.target, operators=tuple(sorted(operators)))
        return write_manifest(folder, replace(bundle.manifest, graphs=Graphs(**described), target=target, files={}))


def _require_possible(bundle: Bundle, options: ExportOptions) -> None:
    require_generation(bundle, "adapters at run time (merge the adapter first)")
    manifest = bundle.manifest
    if options != ExportOptions(lora_inputs=True, overwrite=options.overwrite):
        raise OptionError("lora_inputs: a bundle keeps what was chosen when it was written. Leave out the rest.")
    if manifest.target.provider != "cpu" or manifest.target.dtype != "float32":
        raise UnsupportedError(f"{bundle.folder}: adapters at run time are for bundles for the CPU in float32.")
    if manifest.architecture.model_type not in MODEL_TYPES:
        raise UnsupportedError(
            f"{bundle.folder}: adapters at run time are for {', '.join(MODEL_TYPES)}, and this is "
            f"{manifest.architecture.model_type}. Merge the adapter: onnxlm export CHECKPOINT --lora DIR."
        )
    recipe = manifest.quantization.recipe if manifest.quantization else {}
    if any(recipe.get(key) for key in ("permute", "smoothing", "fold")):
        raise UnsupportedError(
            f"{bundle.folder}: its channels were reordered and scaled when it was quantized, so adapters do not fit. "
            "Quantize by --preset fast or --bits 8, or merge the adapter: onnxlm export CHECKPOINT --lora DIR."
        )
    if any(port.role == MASK for port in manifest.graphs.prefill.inputs):
        raise OptionError(f"{bundle.folder} takes adapters already.")


def _add_inputs(graph: "ir.Graph") -> None:
    """Add the inputs, and six small nodes behind each product with a matrix of attention or MLP."""
    import onnx_ir as ir

    nodes = [n for n in graph if n.op_type in ("MatMul", "MatMulNBits") and _LINEAR.fullmatch(n.name or "")]
    first = next(iter(graph))
    bounds = [_constant(graph, [value], name) for name, value in (("zero", 0), ("one", 1), ("minus_one", -1))]
    masks = {}
    for kind in dict.fromkeys(kind_of(str(node.name)) for node in nodes):
        mask = _input(graph, f"{MASK}.{kind}", ["batch", _rank(kind)])
        column = ir.node("Unsqueeze", [mask, bounds[1]], name=f"{MASK}.{kind}.column")
        graph.insert_before(first, column)
        _named(column, str(column.name))
        masks[kind] = column.outputs[0]
    pads: dict[str, ir.Value] = {}
    for node in nodes:
        kind = kind_of(str(node.name))
        _add_branch(graph, node, masks[kind], pads, bounds)


def _add_branch(
    graph: "ir.Graph", node: "ir.Node", mask: "ir.Value", pads: "dict[str, ir.Value]", bounds: "list[ir.Value]"
) -> None:
    """`pads` has a position to put behind those of x, for each kind of module; the first of a kind makes it.

    A product of a single row takes another kernel than one of several, whose last bits differ: with one position more,
    what a row gets depends on it alone.
    """
    import onnx_ir as ir

    name, x, y = str(node.name), node.inputs[0], node.outputs[0]
    kind, (zero, one, minus_one) = kind_of(name), bounds
    new: list[ir.Node] = []

    def add(op_type: str, inputs: "list[Any]", part: str, **attributes: int) -> "ir.Value":
        made = ir.node(op_type, inputs, attributes, name=f"{name}.lora_{part}")
        made.outputs[0].name = made.name
        new.append(made)
        return made.outputs[0]

    if kind not in pads:
        pads[kind] = add("Slice", [x, zero, one, one], "pad")
    inputs, outputs = _sizes(node)
    a = _input(graph, f"{name}.lora_a", [inputs, _rank(kind_of(name))])
    b = _input(graph, f"{name}.lora_b", [_rank(kind_of(name)), outputs])
    users = list(y.uses())
    own = add("Mul", [add("MatMul", [add("Concat", [x, pads[kind]], "padded", axis=1), a], "down"), mask], "own")
    total = add("Add", [y, add("Slice", [add("MatMul", [own, b], "up"), zero, minus_one, one], "unpadded")], "sum")
    for user, place in users:
        user.replace_input_with(place, total)
    graph.insert_after(node, new)


def _rank(kind: str) -> str:
    """The symbol of the rank; it differs from kind to kind, as a graph computes several modules side by side."""
    return f"rank_of_{kind.rpartition('.')[2]}"


def _sizes(node: "ir.Node") -> tuple[int, int]:
    if node.op_type == "MatMulNBits":
        return node.attributes.get_int("K"), node.attributes.get_int("N")
    shape = node.inputs[1].shape  # type: ignore[union-attr]
    assert shape is not None
    first, second = (int(size) for size in shape.numpy())
    return first, second


def _input(graph: "ir.Graph", name: str, shape: list[Any]) -> "ir.Value":
    import onnx_ir as ir

    value = ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(shape))
    graph.inputs.append(value)
    return value


def _constant(graph: "ir.Graph", values: list[int], name: str) -> "ir.Value":
    import numpy as np
    import onnx_ir as ir

    from quantizer.graph.graphs import add_initializer

    return add_initializer(graph, ir.tensor(np.array(values, np.int64), name=f"lora.{name}"))


def _named(node: "ir.Node", name: str) -> None:
    node.outputs[0].name = name


def _copy(bundle: Bundle, models: "dict[str, ir.Model]", folder: Path) -> None:
    import shutil

    import onnx_ir as ir

    for name in bundle.manifest.files:
        if name not in models:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(bundle.path(name), folder / name)
    for file, model in models.items():
        ir.save(model, folder / file)
