"""The graph edit of experts: stacks of float matrices become operators over their packed codes.

1. MoE → QMoE. Its CPU kernel gives the experts taken the softmax of their logits, whatever it is told; where the
   weights are the softmax over all experts they are computed beside it, as an input of their own.
2. Dense experts, x read by all of them: MatMul over `[E, H, 2I]` → MatMulNBits over `[E · 2I, H]`, then turned to
   `[E, tokens, 2I]`; MatMul over `[E, I, H]` and ReduceSum → turned to `[tokens, E · I]`, MatMulNBits over `[H, E · I]`
"""

from collections.abc import Mapping

import onnx_ir as ir

from ..storage.stored import StoredMatrix
from .experts import Experts, find_experts
from .graphs import add_initializer
from .rewrite import MICROSOFT

_QMOE_INPUTS = 15
_BIAS_1, _CODES_2, _BIAS_2, _ZEROS_1, _WEIGHTS = 4, 5, 7, 11, 14


def rewrite_experts(graph: ir.Graph, stored: Mapping[str, StoredMatrix], accuracy_level: int) -> None:
    """Replace the experts whose two stacks are named in `stored`, and drop their float initializers."""
    for experts in list(find_experts(graph)):
        names = [str(experts.gate_up.name), str(experts.down.name)]
        if all(name in stored for name in names):
            edit = _Edit(graph, experts, stored[names[0]], stored[names[1]], accuracy_level)
            edit.operator() if experts.is_operator else edit.dense()
            for name in names:
                del graph.initializers[name]


class _Edit:
    """The edit of the experts of one layer in one graph."""

    def __init__(
        self, graph: ir.Graph, experts: Experts, gate_up: StoredMatrix, down: StoredMatrix, accuracy_level: int
    ) -> None:
        self._graph = graph
        self._experts = experts
        self._gate_up = gate_up
        self._down = down
        self._accuracy_level = accuracy_level

    def operator(self) -> None:
        """Case 1."""
        old = self._experts.first
        inputs: list[ir.Value | None] = [None] * _QMOE_INPUTS
        inputs[:2] = old.inputs[:2]
        for first, zeros, matrix in ((2, _ZEROS_1, self._gate_up), (_CODES_2, _ZEROS_1 + 1, self._down)):
            inputs[first], inputs[first + 1], inputs[zeros] = self._packed(matrix)
        inputs[_BIAS_1] = old.inputs[3]
        inputs[_BIAS_2] = old.inputs[5] if len(old.inputs) > 5 else None
        if not old.attributes.get_int("normalize_routing_weights", 0):
            inputs[_WEIGHTS] = self._node("Softmax", "weights", [old.inputs[1]], {"axis": -1})
        while inputs[-1] is None:
            inputs.pop()
        scheme = self._gate_up.scheme
        attributes = {"expert_weight_bits": scheme.bits, "block_size": scheme.group_size, "weights_prepacked": 0}
        attributes |= {"accuracy_level": self._accuracy_level}
        new = ir.node("QMoE", inputs, attributes, domain=MICROSOFT, name=old.name)
        new.attributes.update(old.attributes)
        self._replace([old], new)

    def dense(self) -> None:
        """Case 2."""
        first, last = self._experts.first, self._experts.last
        count, width = self._gate_up.rows // (2 * self._inner), 2 * self._inner
        every = self._product(first.name, first.inputs[0], self._gate_up)
        apart = self._node("Reshape", "by_token", [every, self._constant("by_token_shape", [-1, count, width])])
        by_expert = ir.node("Transpose", [apart], {"perm": [1, 0, 2]}, name=f"{first.name}.by_expert")
        self._replace([first], by_expert)
        product = last.inputs[0].producer() if last.inputs[0] is not None else None
        assert product is not None
        transposed = self._node("Transpose", "inner_by_token", [product.inputs[0]], {"perm": [1, 0, 2]}, product)
        shape = self._constant("inner_shape", [1, -1, self._down.inputs])
        flat = self._node("Reshape", "inner", [transposed, shape], at=product)
        self._replace([product, last], self._multiplication(product.name, flat, self._down))

    @property
    def _inner(self) -> int:
        assert self._experts.down.const_value is not None
        return int(self._experts.down.const_value.shape.numpy()[1])

    def _product(self, name: str | None, x: ir.Value | None, matrix: StoredMatrix) -> ir.Value:
        node = self._multiplication(name, x, matrix)
        self._graph.insert_before(self._experts.first, node)
        return node.outputs[0]

    def _multiplication(self, name: str | None, x: ir.Value | None, matrix: StoredMatrix) -> ir.Node:
        codes, scales, zeros = self._packed(matrix)
        attributes = {"K": matrix.inputs, "N": matrix.rows, "bits": matrix.scheme.bits}
        attributes |= {"block_size": matrix.scheme.group_size, "accuracy_level": self._accuracy_level}
        inputs = [x, codes, scales, *([zeros] if zeros is not None else [])]
        return ir.node("MatMulNBits", inputs, attributes, domain=MICROSOFT, name=name)

    def _packed(self, matrix: StoredMatrix) -> tuple[ir.Value, ir.Value, ir.Value | None]:
        """Codes, scales in the activations' type, zero points."""
        scales, wanted = add_initializer(self._graph, matrix.scales), self._experts.down.dtype or ir.DataType.FLOAT
        if matrix.scales.dtype != wanted:
            name = f"{matrix.scales.name}_cast"
            cast = ir.node("Cast", [scales], {"to": wanted}, name=name)
            scales = cast.outputs[0]
            scales.name, scales.type, scales.shape = name, ir.TensorType(wanted), matrix.scales.shape
            self._graph.insert_before(self._graph[0], cast)
        zeros = None if matrix.zero_points is None else add_initializer(self._graph, matrix.zero_points)
        return add_initializer(self._graph, matrix.codes), scales, zeros

    def _node(
        self,
        kind: str,
        name: str,
        inputs: list[ir.Value | None],
        attributes: dict[str, int | list[int]] | None = None,
        at: ir.Node | None = None,
    ) -> ir.Value:
        node = ir.node(kind, inputs, attributes or {}, name=f"{self._experts.name}.{name}")
        node.outputs[0].name = node.name
        self._graph.insert_before(at or self._experts.first, node)
        return node.outputs[0]

    def _constant(self, name: str, numbers: list[int]) -> ir.Value:
        return add_initializer(self._graph, ir.tensor(numbers, ir.DataType.INT64, name=f"{self._experts.name}.{name}"))

    def _replace(self, old: list[ir.Node], new: ir.Node) -> None:
        before, after = old[-1].outputs[0], new.outputs[0]
        ir.convenience.replace_nodes_and_values(self._graph, old[-1], old, [new], [before], [after])
