"""One decoder description to an ONNX graph: the only file that knows onnxscript's GraphBuilder."""

import ast
import itertools
from typing import TYPE_CHECKING, Any, Literal

from runtime.errors import UnsupportedError

from .gc_pause import gc_paused
from .kernels import require_kernels

if TYPE_CHECKING:
    import onnx_ir as ir

    from models.decoder.description import Decoder
    from models.decoder.sequence_output import SequenceOutput
    from models.targets.target import Target

Role = Literal["prefill", "decode"]

OPSET = 23
IR_VERSION = 11


@gc_paused()
def build_graph(decoder: "Decoder", target: "Target", role: Role) -> "ir.Model":
    """The graph of one role, with weights that know their shape and plan but hold no data yet.

    Inputs and outputs are those of FORMAT.md; initializers and nodes carry the names of the module tree.

    Raises:
        UnsupportedError: a node has no kernel on the target.
    """
    import onnx_ir as ir
    from onnxscript import GraphBuilder

    from models.blocks.decoder import CausalLM

    graph = ir.Graph([], [], nodes=[], opset_imports={"": OPSET, "com.microsoft": 1}, name=role)
    builder = GraphBuilder(graph)
    ids, lengths, index = _token_inputs(builder, decoder, target, role)
    pasts: list[Any] = [None] * len(decoder.layers)
    for i in decoder.caching:
        pasts[i] = _past_inputs(builder, decoder, target, i)
    for i in decoder.recurrent:
        pasts[i] = _state_inputs(builder, decoder, i)
    logits, presents = CausalLM(decoder, target)(builder.op, ids, lengths, index, pasts)
    _add_outputs(builder, decoder, target, logits, presents, role)
    _name_nodes(graph)
    require_kernels(graph, target)
    return _model(graph, decoder, target, f"The {role} graph")


@gc_paused()
def build_sequence_graph(decoder: "Decoder", output: "SequenceOutput", target: "Target") -> "ir.Model":
    """The one graph of an embedding model or a reranker: whole texts, padded on the right, to a row of numbers each.

    Raises:
        UnsupportedError: a layer cannot read padded texts side by side, or a node has no kernel on the target.
    """
    import onnx_ir as ir
    from onnxscript import GraphBuilder

    from models.blocks.sequence_encoder import SequenceEncoder

    if decoder.recurrent or len(decoder.caching) < len(decoder.layers):
        kind = "keep a state" if decoder.recurrent else "share keys and values"
        raise UnsupportedError(
            f"{decoder.model_type} has layers that {kind}; embeddings and scores are exported of models whose every "
            "layer has an attention of its own."
        )
    graph = ir.Graph([], [], nodes=[], opset_imports={"": OPSET, "com.microsoft": 1}, name=output.role)
    builder = GraphBuilder(graph)
    ids = builder.input("input_ids", ir.DataType.INT64, ["batch", "sequence"])
    seqlens = builder.input("seqlens_k", ir.DataType.INT32, ["batch"])
    total = builder.input("total_sequence_length", ir.DataType.INT32, [])
    rows = SequenceEncoder(decoder, output, target)(builder.op, ids, (seqlens, total, None))
    _describe(rows, ir.DataType.FLOAT, ["batch", output.width(decoder.hidden_size)])
    builder.add_output(rows, output.role)
    _name_nodes(graph)
    require_kernels(graph, target)
    return _model(graph, decoder, target, f"The graph of {output.role}")


def _model(graph: "ir.Graph", decoder: "Decoder", target: "Target", words: str) -> "ir.Model":
    """With what viewers such as Netron show of a file: who wrote it, and what it is."""
    from importlib.metadata import version

    import onnx_ir as ir

    sizes = f"{len(decoder.layers)} layers, hidden size {decoder.hidden_size}, vocabulary {decoder.vocab_size}"
    about = {"model_type": decoder.model_type, "context_length": str(decoder.context_length),
             "provider": target.provider, "dtype": target.dtype}  # fmt: skip
    return ir.Model(
        graph, ir_version=IR_VERSION, producer_name="onnxlm", producer_version=version("onnxlm"),
        doc_string=f"{words} of a {decoder.model_type} model: {sizes}. FORMAT.md of onnxlm describes its inputs.",
        metadata_props=about,
    )  # fmt: skip


def _token_inputs(
    builder: Any, decoder: "Decoder", target: "Target", role: Role
) -> tuple[Any, tuple[Any, Any, Any], Any]:
    from onnx_ir import DataType

    width: str | int = "sequence" if role == "prefill" else 1
    ids = builder.input("input_ids", DataType.INT64, ["batch", width])
    seqlens = builder.input("seqlens_k", DataType.INT32, ["batch"])
    total = builder.input("total_sequence_length", DataType.INT32, [])
    index = builder.input("logits_index", DataType.INT64, ["selected", 2]) if role == "prefill" else None
    counts = None
    if role == "prefill" and target.onnxruntime != "1.31":
        _require_batched_chunks(decoder)
        counts = builder.input("query_seqlens", DataType.INT32, ["batch"])
    return ids, (seqlens, total, counts), index


def _require_batched_chunks(decoder: "Decoder") -> None:
    """Refuse layers that cannot take padded chunks of several sequences at once."""
    if decoder.recurrent:
        reason = "has layers that keep a state, which padding would change"
    elif len(decoder.caching) < len(decoder.layers):
        reason = "has layers that share keys and values, and query_seqlens counts those a layer adds itself"
    else:
        return
    raise UnsupportedError(f"{decoder.model_type} {reason}. Export it with --target-ort 1.31.")


def _past_inputs(builder: Any, decoder: "Decoder", target: "Target", layer: int) -> tuple[Any, Any]:
    from models.blocks.parameter import DTYPES

    shape = _cache_shape(decoder, layer)
    key, value = (
        builder.input(f"past_key_values.{layer}.{part}", DTYPES[target.dtype], shape) for part in ("key", "value")
    )
    return key, value


def _state_inputs(builder: Any, decoder: "Decoder", layer: int) -> tuple[Any, ...]:
    """States are float32 on every target: errors in them add up over the sequence."""
    from onnx_ir import DataType

    shapes = decoder.recurrent[layer].states
    return tuple(
        builder.input(f"past_state.{layer}.{number}", DataType.FLOAT, ["batch", *shape])
        for number, shape in enumerate(shapes)
    )


def _cache_shape(decoder: "Decoder", layer: int) -> list[str | int]:
    from models.decoder.heads import head_layout

    attention = decoder.caching[layer]
    return ["batch", attention.kv_heads, "capacity", head_layout(attention).width]


def _add_outputs(
    builder: Any, decoder: "Decoder", target: "Target", logits: Any, presents: list[tuple[Any, Any]], role: Role
) -> None:
    import onnx_ir as ir

    from models.blocks.parameter import DTYPES

    _describe(logits, ir.DataType.FLOAT, ["selected" if role == "prefill" else "batch", decoder.vocab_size])
    builder.add_output(logits, "logits")
    for layer in decoder.caching:
        for part, value in zip(("key", "value"), presents[layer], strict=True):
            _describe(value, DTYPES[target.dtype], _cache_shape(decoder, layer))
            builder.add_output(value, f"present.{layer}.{part}")

    for layer, about in decoder.recurrent.items():
        for number, (value, shape) in enumerate(zip(presents[layer], about.states, strict=True)):
            _describe(value, ir.DataType.FLOAT, ["batch", *shape])
            builder.add_output(value, f"present_state.{layer}.{number}")


def _describe(value: Any, dtype: Any, shape: list[str | int]) -> None:
    import onnx_ir as ir

    value.type, value.shape = ir.TensorType(dtype), ir.Shape(shape)


def _name_nodes(graph: "ir.Graph") -> None:
    """Name nodes and their outputs like the module tree, for whoever reads the graph or a profile.

    A module's main node carries the module's path; nodes that were given a name carry it behind the path.
    """
    taken: set[str] = set()
    for node in graph:
        own = "" if "_node_" in (node.name or "") else (node.name or "")
        name = ".".join(part for part in (_scope(node), own) if part)
        node.name = _unique(name or node.op_type, node.op_type, taken)
        taken.add(node.name)
        node.metadata_props.clear()
        _name_outputs(node)


def _unique(name: str, op_type: str, taken: set[str]) -> str:
    if name not in taken:
        return name
    numbered = (f"{name}.{op_type}_{number}" for number in itertools.count(2))
    return next(candidate for candidate in numbered if candidate not in taken)


def _name_outputs(node: "ir.Node") -> None:
    for number, output in enumerate(node.outputs):
        if output.is_graph_output():
            continue
        # Of the operators used here, only those of this domain have outputs that may be left out. Attention keeps its
        # own, also where no cache is wanted: without them it would hold the scores of all pairs of positions at once.
        optional = node.domain == "com.microsoft" and node.op_type != "GroupQueryAttention"
        optional_and_unused = number > 0 and not output.uses() and optional
        output.name = "" if optional_and_unused else f"{node.name}.output_{number}" if number else node.name


def _scope(node: "ir.Node") -> str:
    scopes: list[str] = ast.literal_eval(node.metadata_props.get("pkg.onnxscript.name_scopes", "[]"))
    return ".".join(scope for scope in scopes if scope)
