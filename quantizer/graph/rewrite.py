"""The graph edit: MatMul, Gemm and Gather over a float matrix become operators over its packed codes.

1. MatMul(x, W) and Gemm(x, W, transB) → MatMulNBits(x, codes, scales, zero points, bias)
2. Add(MatMul(x, W), bias) → the bias input of MatMulNBits, which is free
3. Gather(W, ids) → Reshape(GatherBlockQuantized(codes, ids, scales)): the *output* is reshaped, never the codes,
   so that a tied head and its embedding read the same bytes
4. With residual channels, the input of MatMulNBits becomes Concat(x, Gather(x, index)), and a gathered row the sum of
   its first part and its second part, spread to where these channels are
5. With outlier channels, MatMulNBits reads x · mask, and MatMul(Gather(x, channels), weights) is added
"""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from ..storage.stored import StoredMatrix
from .graphs import add_initializer
from .quantizable import use_of

MICROSOFT = "com.microsoft"


def rewrite_graph(graph: ir.Graph, stored: Mapping[str, StoredMatrix], accuracy_level: int) -> None:
    """Replace every use of the weights named in `stored`, and drop the float initializers."""
    if MICROSOFT not in graph.opset_imports:
        graph.opset_imports[MICROSOFT] = 1
    for name, matrix in stored.items():
        weight = graph.initializers.get(name)
        if weight is not None:
            _Edit(graph, name, matrix, weight.dtype or ir.DataType.FLOAT, accuracy_level).replace_uses(weight)
            del graph.initializers[name]


class _Edit:
    """The edit of one matrix in one graph; its initializers are added on first use.

    `dtype` is the matrix's before, and the activations': nothing else says what these are behind contrib operators.
    """

    def __init__(
        self, graph: ir.Graph, name: str, matrix: StoredMatrix, dtype: ir.DataType, accuracy_level: int
    ) -> None:
        self._graph = graph
        self._name = name.removesuffix(".weight")
        self._matrix = matrix
        self._dtype = dtype
        self._accuracy_level = accuracy_level
        self._values: dict[str, ir.Value] = {}

    def replace_uses(self, weight: ir.Value) -> None:
        for node in list(weight.consumers()):
            if use_of(node, weight) == "gather":
                self._gather(node)
            else:
                self._multiply(node)

    def _multiply(self, node: ir.Node) -> None:
        """Cases 1 and 2."""
        bias, last = _bias_of(node, self._matrix.rows)
        scheme = self._matrix.scheme
        attributes = {"K": self._matrix.width, "N": self._matrix.rows, "bits": scheme.bits}
        attributes |= {"block_size": scheme.group_size, "accuracy_level": self._accuracy_level}
        scales = self._scales()
        before = self._mask_outliers(node)
        before += self._repeat_inputs(node, before[-1].outputs[0] if before else node.inputs[0])
        x = before[-1].outputs[0] if before else node.inputs[0]
        inputs = [x, self._codes(), scales, self._zero_points(), None, bias]
        while inputs[-1] is None:
            inputs.pop()
        new = ir.node("MatMulNBits", inputs, attributes, domain=MICROSOFT, name=node.name)
        _replace([node] if last is node else [node, last], [*before, new, *self._add_outlier_product(node, new)])

    def _mask_outliers(self, node: ir.Node) -> list[ir.Node]:
        """Case 5, in front of a product."""
        if self._matrix.beside is None:
            return []
        mask = self._cast("outlier_mask", self._matrix.beside.mask, self._dtype)
        return [ir.node("Mul", [node.inputs[0], mask], name=f"{node.name}.masked")]

    def _add_outlier_product(self, node: ir.Node, product: ir.Node) -> list[ir.Node]:
        """Case 5, behind a product."""
        if self._matrix.beside is None:
            return []
        channels = self._initializer("outlier_channels", self._matrix.beside.channels)
        weights = self._cast("outlier_weights", self._matrix.beside.weights, self._dtype)
        picked = ir.node("Gather", [node.inputs[0], channels], {"axis": -1}, name=f"{node.name}.picked")
        exact = ir.node("MatMul", [picked.outputs[0], weights], name=f"{node.name}.exact")
        total = ir.node("Add", [product.outputs[0], exact.outputs[0]], name=f"{node.name}.total")
        return [picked, exact, total]

    def _repeat_inputs(self, node: ir.Node, x: ir.Value | None) -> list[ir.Node]:
        """Case 4, in front of a product."""
        if self._matrix.residuals is None:
            return []
        index = self._initializer("outliers", self._matrix.residuals)
        picked = ir.node("Gather", [x, index], {"axis": -1}, name=f"{node.name}.outliers")
        parts = [x, picked.outputs[0]]
        return [picked, ir.node("Concat", parts, {"axis": -1}, name=f"{node.name}.extended")]

    def _gather(self, node: ir.Node) -> None:
        """Case 3. Symmetric only: MatMulNBits and GatherBlockQuantized pack 4-bit zero points differently."""
        scheme = self._matrix.scheme
        assert scheme.symmetric
        groups = scheme.groups(self._matrix.width)
        scales = self._scales()
        shape = self._constant("scales_shape", [self._matrix.rows, groups, 1])
        scales_3d = ir.node("Reshape", [scales, shape], name=f"{self._name}.scales_3d")
        attributes = {"bits": scheme.bits, "block_size": scheme.group_size, "gather_axis": 0, "quantize_axis": 2}
        inputs = [self._codes(), node.inputs[1], scales_3d.outputs[0]]
        gathered = ir.node("GatherBlockQuantized", inputs, attributes, domain=MICROSOFT, name=node.name)
        nodes = [scales_3d, gathered, *self._flatten(gathered.outputs[0], groups * scheme.group_size)]
        _replace([node], nodes)

    def _flatten(self, gathered: ir.Value, padded: int) -> list[ir.Node]:
        """`[batch, sequence, groups, group_size]` → `[batch, sequence, inputs]`."""
        shape = self._constant("row_shape", [0, 0, padded])
        nodes = [ir.node("Reshape", [gathered, shape], name=f"{self._name}.row")]
        if padded == self._matrix.inputs:
            return nodes
        nodes.append(self._slice(nodes[0], 0, self._matrix.inputs, "main"))
        return nodes + (self._add_residuals(nodes) if self._matrix.residuals else [])

    def _add_residuals(self, nodes: list[ir.Node]) -> list[ir.Node]:
        """Case 4, behind a gathered row: input i gets the second code at `place[i]`, or the zero behind them all."""
        inputs, index = self._matrix.inputs, self._matrix.index
        filler = -inputs % self._matrix.scheme.group_size
        place = np.full(inputs, len(index), np.int64)
        place[index[filler:]] = np.arange(filler, len(index))
        second = self._slice(nodes[0], inputs, self._matrix.width, "second")
        padding = self._constant("row_padding", [0, 0, 0, 0, 0, 1])
        padded = ir.node("Pad", [second.outputs[0], padding], name=f"{self._name}.row_padded")
        places = self._constant("row_places", place.tolist())
        spread = ir.node("Gather", [padded.outputs[0], places], {"axis": -1}, name=f"{self._name}.row_spread")
        total = ir.node("Add", [nodes[1].outputs[0], spread.outputs[0]], name=f"{self._name}.row_sum")
        return [second, padded, spread, total]

    def _slice(self, row: ir.Node, start: int, end: int, part: str) -> ir.Node:
        bounds = [self._constant(f"{part}_start", [start]), self._constant(f"{part}_end", [end])]
        axis = self._constant("row_axis", [-1])
        return ir.node("Slice", [row.outputs[0], *bounds, axis], name=f"{self._name}.row_{part}")

    def _codes(self) -> ir.Value:
        return self._initializer("codes", self._matrix.codes)

    def _zero_points(self) -> ir.Value | None:
        stored = self._matrix.zero_points
        return None if stored is None else self._initializer("zero_points", stored)

    def _scales(self) -> ir.Value:
        """The scales in the activations' type; what makes them is folded away when ONNX Runtime loads the graph."""
        wanted = self._dtype
        scales = self._cast("scales", self._matrix.scales, wanted)
        if self._matrix.steps is None:
            return scales
        if "scales_product" not in self._values:
            steps = self._cast("scale_steps", self._matrix.steps, wanted)
            product = ir.node("Mul", [scales, steps])
            last = scales.producer()
            assert last is not None
            self._graph.insert_after(last, self._named("scales_product", product, wanted, self._matrix.scales.shape))
        return self._values["scales_product"]

    def _cast(self, part: str, tensor: ir.ExternalTensor, wanted: ir.DataType) -> ir.Value:
        stored = self._initializer(part, tensor)
        if tensor.dtype == wanted:
            return stored
        if f"{part}_cast" not in self._values:
            cast = self._named(f"{part}_cast", ir.node("Cast", [stored], {"to": wanted}), wanted, tensor.shape)
            self._graph.insert_before(self._graph[0], cast)
        return self._values[f"{part}_cast"]

    def _named(self, part: str, node: ir.Node, dtype: ir.DataType, shape: ir.Shape) -> ir.Node:
        node.name = node.outputs[0].name = f"{self._name}.{part}"
        node.outputs[0].type, node.outputs[0].shape = ir.TensorType(dtype), shape
        self._values[part] = node.outputs[0]
        return node

    def _initializer(self, part: str, tensor: ir.TensorProtocol) -> ir.Value:
        if part not in self._values:
            self._values[part] = add_initializer(self._graph, tensor)
        return self._values[part]

    def _constant(self, part: str, numbers: Sequence[int]) -> ir.Value:
        return self._initializer(part, ir.tensor(numbers, ir.DataType.INT64, name=f"{self._name}.{part}"))


def _bias_of(node: ir.Node, rows: int) -> tuple[ir.Value | None, ir.Node]:
    """The bias that is added to the product, and the last node of the pattern."""
    if node.op_type == "Gemm":
        return (node.inputs[2] if len(node.inputs) > 2 else None), node
    users = list(node.outputs[0].consumers())
    if len(users) != 1 or users[0].op_type != "Add" or node.outputs[0].is_graph_output():
        return None, node
    others = [value for value in users[0].inputs if value is not node.outputs[0]]
    bias = others[0] if others else None
    if bias is None or bias.const_value is None or tuple(bias.const_value.shape) != (rows,):
        return None, node
    return bias, users[0]


def _replace(old: list[ir.Node], new: list[ir.Node]) -> None:
    before, after = old[-1].outputs[0], new[-1].outputs[0]
    graph = old[0].graph
    assert isinstance(graph, ir.Graph)
    ir.convenience.replace_nodes_and_values(graph, old[-1], old, new, [before], [after])
