"""Which weights may absorb each other's changes: read from the graph, never assumed from names.

1. Norm: gain → matrices that read the normed value
2. Attention: value rows of a packed qkv → GroupQueryAttention → columns of o
3. Gate: rows of gate_up → Split → activation(gate) · up → columns of down
4. Stream: the residual stream from the table to the head; every node on it must be known, or there is none

What is not recognised is simply not in the result: the quantizer then leaves it in its natural order.
"""

from dataclasses import dataclass, field

import onnx_ir as ir

from .sites import use_of

_NORMS = ("SimplifiedLayerNormalization", "RMSNormalization")
_SKIP_NORM = "SkipSimplifiedLayerNormalization"
_ACTIVATIONS = ("QuickGelu", "Gelu", "BiasGelu", "FastGelu", "Silu", "Swish", "Sigmoid", "Relu", "Tanh")
_PASSES_CHANNELS = ("GatherND", "Cast", "Identity")  # the channel axis stays last, untouched


@dataclass(frozen=True)
class Norm:
    """A gain and the matrices that read what it scales, and nothing else does."""

    gain: str
    readers: tuple[str, ...]


@dataclass(frozen=True)
class Attention:
    """Packed qkv `[(heads + 2 kv_heads) · head_dim, H]` and o `[H, heads · head_dim]`."""

    qkv: str
    qkv_bias: str | None
    o: str
    heads: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True)
class Gate:
    """gate_up `[2 · inner, H]`, gate first, and down `[H, inner]`."""

    gate_up: str
    gate_up_bias: str | None
    down: str


@dataclass(frozen=True)
class Stream:
    """Everything that touches the residual stream of `size` channels.

    Attributes:
        inputs: matrices whose inputs are its channels: tables, readers.
        outputs: matrices and vectors whose outputs are its channels: writers, their biases, gains.
    """

    size: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Structure:
    """What was recognised, in order of the graph."""

    norms: tuple[Norm, ...]
    attentions: tuple[Attention, ...]
    gates: tuple[Gate, ...]
    stream: Stream | None


def find_structure(graph: ir.Graph) -> Structure:
    """Recognise the links of a prefill graph."""
    nodes = list(graph)
    return Structure(
        norms=tuple(link for link in map(_norm, nodes) if link),
        attentions=tuple(link for link in map(_attention, nodes) if link),
        gates=tuple(link for link in map(_gate, nodes) if link),
        stream=_StreamWalk().walk(graph),
    )


def _norm(node: ir.Node) -> Norm | None:
    """Case 1."""
    position = {**dict.fromkeys(_NORMS, 1), _SKIP_NORM: 2}.get(node.op_type)
    gain = node.inputs[position] if position is not None and len(node.inputs) > position else None
    users = list(node.outputs[0].consumers())
    readers = [_weight_read(user, node.outputs[0]) for user in users]
    if gain is None or gain.const_value is None or len(list(gain.consumers())) != 1 or not readers or None in readers:
        return None
    return Norm(str(gain.name), tuple(name for name in readers if name))


def _attention(node: ir.Node) -> Attention | None:
    """Case 2."""
    if node.op_type != "GroupQueryAttention" or node.inputs[1] is not None or node.inputs[0] is None:
        return None
    product = _product(node.inputs[0])
    users = list(node.outputs[0].consumers())
    o = _weight_read(users[0], node.outputs[0]) if len(users) == 1 else None
    if product is None or o is None or not _only_user(node.inputs[0], node):
        return None
    qkv, bias, rows = product
    heads, kv_heads = node.attributes["num_heads"].as_int(), node.attributes["kv_num_heads"].as_int()
    return Attention(qkv, bias, o, heads, kv_heads, rows // (heads + 2 * kv_heads))


def _gate(node: ir.Node) -> Gate | None:
    """Case 3; `node` is the product of the activated gate and up."""
    if node.op_type != "Mul" or len(node.inputs) != 2:
        return None
    for activated, up in (node.inputs, node.inputs[::-1]):
        split = _split_behind(activated, up)
        users = list(node.outputs[0].consumers())
        down = _weight_read(users[0], node.outputs[0]) if len(users) == 1 else None
        if split is not None and down is not None and split.inputs[0] is not None:
            product = _product(split.inputs[0])
            if product is not None and _only_user(split.inputs[0], split):
                return Gate(product[0], product[1], down)
    return None


def _split_behind(activated: ir.Value | None, up: ir.Value | None) -> ir.Node | None:
    activation = activated.producer() if activated is not None else None
    split = up.producer() if up is not None else None
    if activation is None or split is None or split.op_type != "Split" or up is not split.outputs[1]:
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
        if len(constant) != 1 or len(rest) != 1 or not _only_user(rest[0], node):
            return None
        bias, node = str(constant[0].name), rest[0].producer()
    if node is None or node.op_type != "MatMul" or node.inputs[1] is None or node.inputs[1].const_value is None:
        return None
    weight, tensor = node.inputs[1], node.inputs[1].const_value
    if len(list(weight.consumers())) != 1:
        return None
    return str(weight.name), bias, int(tensor.shape.numpy()[1])


def _weight_read(node: ir.Node, value: ir.Value) -> str | None:
    """The weight by which `node` multiplies `value`, if it does only that."""
    if node.op_type not in ("MatMul", "Gemm") or node.inputs[0] is not value or node.inputs[1] is None:
        return None
    weight = node.inputs[1]
    used = weight.const_value is not None and use_of(node, weight) is not None and len(list(weight.consumers())) == 1
    return str(weight.name) if used else None


def _only_user(value: ir.Value, node: ir.Node) -> bool:
    return list(value.consumers()) == [node] and not value.is_graph_output()


@dataclass
class _StreamWalk:
    """Case 4: follow the values whose last axis is the hidden one, in order of the graph."""

    inputs: dict[str, None] = field(default_factory=dict)
    outputs: dict[str, None] = field(default_factory=dict)
    size: int = 0
    _on_stream: set[ir.Value] = field(default_factory=set)

    def walk(self, graph: ir.Graph) -> Stream | None:
        """None as soon as a node is met that this does not know."""
        for node in graph:
            if self._is_table(node):
                self._on_stream.add(node.outputs[0])
            elif any(value in self._on_stream for value in node.inputs if value is not None) and not self._follow(node):
                return None
        consistent = not any(value in self._on_stream for value in graph.outputs)
        return Stream(self.size, tuple(self.inputs), tuple(self.outputs)) if self.inputs and consistent else None

    def _is_table(self, node: ir.Node) -> bool:
        weight = node.inputs[0] if node.op_type == "Gather" else None
        if weight is None or weight.const_value is None or use_of(node, weight) is None:
            return False
        self.inputs[str(weight.name)] = None
        self.size = int(weight.const_value.shape.numpy()[1])
        return True

    def _follow(self, node: ir.Node) -> bool:
        if node.op_type in _NORMS or node.op_type == _SKIP_NORM or node.op_type == "Add":
            return self._elementwise(node)
        if node.op_type == "Mul":
            others = [v for v in node.inputs if v is not None and v not in self._on_stream]
            self._on_stream.add(node.outputs[0])
            return all(v.const_value is not None and v.const_value.size == 1 for v in others)
        if node.op_type in _PASSES_CHANNELS:
            self._on_stream.add(node.outputs[0])
            return True
        weight = node.inputs[1] if node.op_type in ("MatMul", "Gemm") else None
        if weight is None or weight.const_value is None or use_of(node, weight) is None:
            return False
        self.inputs[str(weight.name)] = None
        return True

    def _elementwise(self, node: ir.Node) -> bool:
        """Every operand is on the stream, is written to it by a matrix, or is a vector of its size."""
        for value in node.inputs:
            if value is not None and value not in self._on_stream and not self._writes(value):
                return False
        self._on_stream.update(v for i, v in enumerate(node.outputs) if i in (0, 3))
        return True

    def _writes(self, value: ir.Value) -> bool:
        if value.const_value is not None:
            if tuple(value.const_value.shape.numpy()) != (self.size,):
                return False
            self.outputs[str(value.name)] = None
            return True
        product = _product(value)
        if product is None:
            return False
        self.outputs.update(dict.fromkeys(name for name in product[:2] if name))
        return True
