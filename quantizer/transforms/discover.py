"""Which weights may absorb each other's changes. The nodes between them decide, not the names of modules.

1. Norm: gain (and bias) → matrices that read the normed value
2. Attention: value rows of qkv → GroupQueryAttention → columns of o
3. Gate: rows of gate_up → Split → activation(gate) · up → columns of down
4. Stream: the residual stream from the embedding to the head

What is not recognised is not in the result: it keeps its order and its scale, at some loss of quality.
"""

from dataclasses import dataclass

import onnx_ir as ir

from ..graph.quantizable import use_of
from .residual_stream import Stream, find_stream, norm_vectors

_ACTIVATIONS = ("QuickGelu", "Gelu", "FastGelu", "Silu", "Swish", "Sigmoid", "Relu", "Tanh")


@dataclass(frozen=True)
class Norm:
    """Gain (and bias) `[H]`, and the matrices that read the normed value; nothing else reads that value."""

    vectors: tuple[str, ...]
    readers: tuple[str, ...]


@dataclass(frozen=True)
class Attention:
    """qkv `[(heads + 2 kv_heads) · head_dim, H]` and o `[H, heads · head_dim]`, as `[outputs, inputs]`."""

    qkv: str
    qkv_bias: str | None
    o: str
    heads: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True)
class Gate:
    """gate_up `[2 · inner, H]`, gate first, and down `[H, inner]`, as `[outputs, inputs]`."""

    gate_up: str
    gate_up_bias: str | None
    down: str


@dataclass(frozen=True)
class Structure:
    """What was recognised, in order of the graph."""

    norms: tuple[Norm, ...]
    attentions: tuple[Attention, ...]
    gates: tuple[Gate, ...]
    stream: Stream | None


def find_structure(graph: ir.Graph, vocab_size: int) -> Structure:
    """Recognise the links of a prefill graph."""
    nodes = list(graph)
    return Structure(
        norms=tuple(link for link in map(_norm, nodes) if link),
        attentions=tuple(link for link in map(_attention, nodes) if link),
        gates=tuple(link for link in map(_gate, nodes) if link),
        stream=find_stream(graph, vocab_size),
    )


def _norm(node: ir.Node) -> Norm | None:
    """Case 1."""
    vectors = norm_vectors(node)
    if not vectors or not all(_is_own(value) for value in vectors):
        return None
    readers = [_weight_read(user, node.outputs[0]) for user in node.outputs[0].consumers()]
    if not readers or None in readers or node.outputs[0].is_graph_output():
        return None
    return Norm(tuple(str(value.name) for value in vectors), tuple(name for name in readers if name))


def _attention(node: ir.Node) -> Attention | None:
    """Case 2: queries, keys and values packed in the first input, or apart with values straight from a Split."""
    if node.op_type != "GroupQueryAttention":
        return None
    packed, user = node.inputs[0], node
    if node.inputs[2] is not None:
        value = node.inputs[2]
        split = value.producer()
        if split is None or split.op_type != "Split" or len(split.outputs) != 3:
            return None
        if value is not split.outputs[2] or not _only_user(value, node):
            return None
        packed, user = split.inputs[0], split
    users = list(node.outputs[0].consumers())
    o = _weight_read(users[0], node.outputs[0]) if len(users) == 1 else None
    product = _product(packed) if packed is not None and _only_user(packed, user) else None
    if product is None or o is None:
        return None
    qkv, bias, rows = product
    heads, kv_heads = node.attributes["num_heads"].as_int(), node.attributes["kv_num_heads"].as_int()
    return Attention(qkv, bias, o, heads, kv_heads, rows // (heads + 2 * kv_heads))


def _gate(node: ir.Node) -> Gate | None:
    """Case 3; `node` is the product of the activated gate and up."""
    if node.op_type != "Mul" or len(node.inputs) != 2:
        return None
    users = list(node.outputs[0].consumers())
    down = _weight_read(users[0], node.outputs[0]) if len(users) == 1 else None
    for activated, up in (node.inputs, node.inputs[::-1]):
        split = _split_behind(activated, up)
        packed = split.inputs[0] if split is not None else None
        if split is not None and down is not None and packed is not None and _only_user(packed, split):
            product = _product(packed)
            return Gate(product[0], product[1], down) if product else None
    return None


def _split_behind(activated: ir.Value | None, up: ir.Value | None) -> ir.Node | None:
    activation = activated.producer() if activated is not None else None
    split = up.producer() if up is not None else None
    if activation is None or split is None or split.op_type != "Split" or up is not split.outputs[-1]:
        return None
    same = activation.op_type in _ACTIVATIONS and activation.inputs[0] is split.outputs[0]
    even = len(split.outputs) == 2 and (len(split.inputs) < 2 or split.inputs[1] is None)
    single = all(len(list(value.consumers())) == 1 for value in (*split.outputs, *activation.outputs))
    return split if same and even and single else None


def _product(value: ir.Value) -> tuple[str, str | None, int] | None:
    """Weight, bias and outputs of the matrix that `value` is a product of (bias added or not)."""
    node = value.producer()
    bias = None
    if node is not None and node.op_type == "Add":
        constant = [v for v in node.inputs if v is not None and v.const_value is not None]
        rest = [v for v in node.inputs if v is not None and v.const_value is None]
        if len(constant) != 1 or len(rest) != 1 or not _only_user(rest[0], node) or not _is_own(constant[0]):
            return None
        bias, node = str(constant[0].name), rest[0].producer()
    if node is None or node.op_type != "MatMul" or node.inputs[1] is None or not _is_own(node.inputs[1]):
        return None
    tensor = node.inputs[1].const_value
    assert tensor is not None
    return str(node.inputs[1].name), bias, int(tensor.shape.numpy()[1])


def _weight_read(node: ir.Node, value: ir.Value) -> str | None:
    """The weight by which `node` multiplies `value`, if it does only that."""
    if node.op_type not in ("MatMul", "Gemm") or node.inputs[0] is not value or node.inputs[1] is None:
        return None
    weight = node.inputs[1]
    return str(weight.name) if _is_own(weight) and use_of(node, weight) is not None else None


def _is_own(value: ir.Value) -> bool:
    """On disk, and used once: free to change."""
    return isinstance(value.const_value, ir.ExternalTensor) and len(list(value.consumers())) == 1


def _only_user(value: ir.Value, node: ir.Node) -> bool:
    return list(value.consumers()) == [node] and not value.is_graph_output()
