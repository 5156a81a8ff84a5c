"""One graph with the inputs that other programs expect: an attention mask in place of lengths.

It is made from a bundle's prefill graph, which is right for any number of ids, and reads the same weights.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx_ir as ir

_INT32 = 6  # TensorProto.INT32
_LENGTHS = ("seqlens_k", "total_sequence_length", "logits_index", "query_seqlens")


def make_genai_graph(model: "ir.Model") -> None:
    """Change a prefill graph in place.

    Inputs: input_ids int64 `[batch, sequence]`; attention_mask int64 `[batch, total]`, ones, with zeros behind shorter
    rows; past_key_values.i.key and .value `[batch, kv_heads, past, head_dim]`.
    Outputs: logits float32 `[batch, 1, V]` of each row's last id; present.i.key and .value, of `total` positions, or of
    those of the past where they are bound to its memory.

    As in prefill, several sequences at once have no past, or one id each.
    """
    import onnx_ir as ir

    graph = model.graph
    mask = ir.Value(name="attention_mask", type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape(["batch", "total"]))
    given = {str(value.name): value for value in graph.inputs}
    nodes = _Nodes(graph)
    lengths = _lengths(nodes, given["input_ids"], mask)
    for name in _LENGTHS:
        if name in given:
            given[name].replace_all_uses_with(lengths[name])
            graph.inputs.remove(given[name])
    graph.inputs.insert(1, mask)
    nodes.insert()
    _lift_logits(graph)
    _separate_lengths(graph)


def _lengths(nodes: "_Nodes", ids: "ir.Value", mask: "ir.Value") -> "dict[str, ir.Value]":
    """What our graphs are told, computed from the mask.

    A row has min(sequence, ones of its mask) ids: its mask has more ones than it has places only where a past comes
    before them, and then nothing is padded.
    """
    one, zero = nodes.constant("one", [1]), nodes.constant("zero", [0])
    ones = nodes.add("ReduceSum", "ones", mask, one, keepdims=0)
    width = nodes.add("Shape", "width", ids, start=1, end=2)
    counts = nodes.add("Min", "counts", ones, width)
    batch = nodes.add("Squeeze", "batch", nodes.add("Shape", "batch_size", ids, start=0, end=1), zero)
    rows = nodes.add("Range", "rows", nodes.constant("first", 0), batch, nodes.constant("step", 1))
    places = [
        nodes.add("Unsqueeze", "row", rows, one),
        nodes.add("Unsqueeze", "last", nodes.add("Sub", "last_place", counts, one), one),
    ]
    total = nodes.add("Squeeze", "total", nodes.add("Shape", "mask_width", mask, start=1, end=2), zero)
    return {
        "seqlens_k": nodes.add("Cast", "seqlens_k", nodes.add("Sub", "before", ones, one), to=_INT32),
        "total_sequence_length": nodes.add("Cast", "total_sequence_length", total, to=_INT32),
        "query_seqlens": nodes.add("Cast", "query_seqlens", counts, to=_INT32),
        "logits_index": nodes.add("Concat", "logits_index", *places, axis=1),
    }


class _Nodes:
    """Nodes that come before all others of a graph, named `mask.…`."""

    def __init__(self, graph: "ir.Graph") -> None:
        from onnx_ir import tape

        self._graph, self._tape = graph, tape.Tape()

    def add(self, kind: str, name: str, *inputs: "ir.Value", **attributes: int) -> "ir.Value":
        name = f"mask.{name}"
        return self._tape.op(kind, inputs, attributes, name=name, output=_named(name))

    def constant(self, name: str, numbers: Any) -> "ir.Value":
        import onnx_ir as ir

        return self._tape.initializer(ir.tensor(numbers, ir.DataType.INT64, name=f"mask.{name}"))

    def insert(self) -> None:
        """Put them into the graph, without those that nobody reads."""
        used = [node for node in self._tape.nodes if node.outputs[0].uses()]
        self._graph.insert_before(self._graph[0], used)
        for value in self._tape.initializers:
            self._graph.register_initializer(value)


def _named(name: str) -> "ir.Value":
    import onnx_ir as ir

    return ir.Value(name=name)


def _lift_logits(graph: "ir.Graph") -> None:
    """`[batch, V]` → `[batch, 1, V]`."""
    import onnx_ir as ir

    flat = graph.outputs[0]
    assert flat.shape is not None
    axis = ir.Value(name="logits_axis", const_value=ir.tensor([1], ir.DataType.INT64, name="logits_axis"))
    graph.register_initializer(axis)
    node = ir.node("Unsqueeze", [flat, axis], name="logits_lifted")
    lifted, size = node.outputs[0], flat.shape[1]
    lifted.type, lifted.shape = flat.type, ir.Shape(["batch", 1, size])
    flat.name, lifted.name, flat.shape = "flat_logits", "logits", ir.Shape(["batch", size])
    graph.append(node)
    graph.outputs[0] = lifted


def _separate_lengths(graph: "ir.Graph") -> None:
    """Past and present need not be one buffer here, and then are not of one length."""
    import onnx_ir as ir

    for values, size in ((graph.inputs, "past"), (graph.outputs, "total")):
        for value in values:
            if value.shape is not None and value.name and value.name.startswith(("past_", "present.")):
                value.shape = ir.Shape(size if str(part) == "capacity" else part for part in value.shape)
