"""Add Hessians to a piece of a graph: XᵀX for every value that a matrix multiplies.

Tokens are weighted where a matrix writes to the residual stream h. The next norm divides the sum by its root mean
square, so an error on a token counts as 1 / mean(h²). Without this the few tokens with massive activations, the first
of a text above all, decide everything and are hurt least by it. Behind a norm all tokens count alike: weighting them
there too made the KL divergence worse.
"""

from collections.abc import Iterator

import onnx_ir as ir

from ..graph.experts import Experts
from ..graph.graphs import add_initializer
from ..graph.quantizable import is_matrix, use_of
from ..transforms.residual_stream import norm_vectors

HESSIAN, SQUARES = "hessian", "diagonal"
_PROJECTED = ("MatMul", "Split", "Reshape", "RotaryEmbedding")


def add_hessians(graph: ir.Graph, *, whole: bool = True) -> dict[str, str]:
    """Add outputs for each distinct value that matrices read; return weight name → name of that value.

    Of a value called x the diagonal `[K]` is "x.diagonal", and the Hessian `[K, K]`, if `whole`, "x.hessian".
    """
    added: set[ir.Value] = set()
    readers: dict[str, str] = {}
    for weight, x, inputs, stream in list(_reads(graph)):
        if x not in added:
            added.add(x)
            _HessianOf(graph, x, inputs).add(stream, whole=whole)
        readers[weight] = str(x.name)
    return readers


def hessian_inputs(graph: ir.Graph) -> list[int]:
    """The sizes K of the distinct values that matrices of the graph read, in their order."""
    return list({x: inputs for _, x, inputs, _ in _reads(graph)}.values())


def hessian_bytes(graph: ir.Graph) -> int:
    """What the Hessians of all that matrices of the graph read take in float32."""
    return sum(4 * inputs * inputs for inputs in hessian_inputs(graph))


def _reads(graph: ir.Graph) -> Iterator[tuple[str, ir.Value, int, ir.Value | None]]:
    """Each matrix, what it reads, the size of that, and the stream by which tokens are weighted, if they are."""
    stream: ir.Value | None = None
    for node in graph:
        stream = _stream_at(node) or stream
        weight = node.inputs[1] if node.op_type in ("MatMul", "Gemm") else None
        x = node.inputs[0] if node.inputs else None
        if x is None or weight is None or not is_matrix(weight) or use_of(node, weight) is None:
            continue
        yield str(weight.name), x, _inputs_of(node, weight), None if _is_normed(x) else stream


def _stream_at(node: ir.Node) -> ir.Value | None:
    """The residual stream where a norm reads it; norms of projected queries, keys and outputs do not."""
    if not norm_vectors(node):
        return None
    if node.op_type.startswith("Skip"):
        return node.outputs[3] if len(node.outputs) > 3 else None
    x = node.inputs[0]
    producer = x.producer() if x is not None else None
    return None if producer is not None and producer.op_type in _PROJECTED else x


def _is_normed(x: ir.Value) -> bool:
    node = x.producer()
    return node is not None and bool(norm_vectors(node))


def _inputs_of(node: ir.Node, weight: ir.Value) -> int:
    assert weight.const_value is not None
    return int(weight.const_value.shape.numpy()[0 if node.op_type == "MatMul" else 1])


def add_inputs_of(graph: ir.Graph, experts: Experts) -> list[str]:
    """Make what experts read outputs of the graph: x, routing, and the stream's mean squares `[tokens, 1]` if known."""
    hidden = experts.sites[0].inputs
    squares = _squares_before(graph, experts, hidden)
    wanted = [experts.x, experts.routing, *([squares] if squares else [])]
    for value in wanted:
        if value not in graph.outputs:
            value.type = value.type or ir.TensorType(ir.DataType.FLOAT)
            graph.outputs.append(value)
    return [str(value.name) for value in wanted]


def _squares_before(graph: ir.Graph, experts: Experts, hidden: int) -> ir.Value | None:
    stream: ir.Value | None = None
    for node in list(graph):
        if node is experts.first:
            break
        stream = _stream_at(node) or stream
    if stream is None:
        return None
    squares = _HessianOf(graph, experts.x, hidden, "squares").mean_squares(stream)
    squares.name, squares.type = f"{experts.name}.squares", ir.TensorType(ir.DataType.FLOAT)
    return squares


class _HessianOf:
    """The nodes of one Hessian."""

    def __init__(self, graph: ir.Graph, x: ir.Value, inputs: int, purpose: str = "hessian") -> None:
        self._graph = graph
        self._x = x
        self._inputs = inputs
        self._name = f"{x.name}.{purpose}"

    def add(self, stream: ir.Value | None, *, whole: bool) -> None:
        flat = self._node("Reshape", self._x, self._constant("shape", [-1, self._inputs]))
        share = flat if stream is None else self._node("Div", flat, self.mean_squares(stream))
        squares = self._node("Mul", share, flat)
        self._output(self._node("ReduceSum", squares, self._constant("tokens", [0]), keepdims=0), SQUARES)
        if whole:
            self._output(self._node("MatMul", self._node("Transpose", share, perm=[1, 0]), flat), HESSIAN)

    def _output(self, value: ir.Value, part: str) -> None:
        value.name, value.type = f"{self._x.name}.{part}", ir.TensorType(ir.DataType.FLOAT)
        self._graph.outputs.append(value)

    def mean_squares(self, stream: ir.Value) -> ir.Value:
        """Of each token's stream, `[tokens, 1]`."""
        squares = self._node("Mul", stream, stream)
        means = self._node("ReduceMean", squares, self._constant("axis", [-1]), keepdims=1)
        return self._node("Reshape", means, self._constant("column", [-1, 1]))

    def _node(self, kind: str, *inputs: ir.Value, **attributes: int | list[int]) -> ir.Value:
        node = ir.node(kind, inputs, attributes)
        self._graph.append(node)
        return node.outputs[0]

    def _constant(self, part: str, numbers: list[int]) -> ir.Value:
        return add_initializer(self._graph, ir.tensor(numbers, ir.DataType.INT64, name=f"{self._name}.{part}"))
