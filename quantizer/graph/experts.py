"""Mixtures of experts in a graph: which operators compute them, from which stacks of matrices.

1. operator  MoE(x, routing, gate_up [E, 2I, H], bias, down [E, H, I], bias), gate and up rows alternating
2. dense     every expert for every token: MatMul(x, gate_up [E, H, 2I]) → Split → activation(gate) · up → · weights
             → MatMul(…, down [E, I, H]) → ReduceSum over the experts
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx_ir as ir

from ..storage.matrix import Floats
from ..storage.weights_file import read_part
from .quantizable import QuantizableWeight

_SMALLEST_GROUP = 16


@dataclass(frozen=True)
class Experts:
    """The experts of one layer.

    Attributes:
        name: of the module.
        first, last: the nodes that read `gate_up` and that `down` ends in; the same one for the operator.
        x: `[…, H]`, what every expert reads.
        routing: `[tokens, E]`: logits for the operator, weights for dense experts.
        gate_up, down: the stacks.
        bias: of gate_up `[E, 2I]`, or None.
    """

    name: str
    first: ir.Node
    last: ir.Node
    x: ir.Value
    routing: ir.Value
    gate_up: ir.Value
    down: ir.Value
    bias: ir.Value | None

    @property
    def is_operator(self) -> bool:
        """Case 1."""
        return self.first is self.last

    @property
    def sites(self) -> tuple[QuantizableWeight, QuantizableWeight]:
        """Its two stacks, to be stored alike: the operator has one block size and one width for both."""
        count, first, second = _shape(self.gate_up)
        hidden, inner = (second, first // 2) if self.is_operator else (first, second // 2)
        shared = math.gcd(hidden, inner)
        return (
            self._quantizable_weight(self.gate_up, 2 * inner, hidden, count, shared, "rows"),
            self._quantizable_weight(self.down, hidden, inner, count, shared, "inputs"),
        )

    def _quantizable_weight(
        self, weight: ir.Value, rows: int, inputs: int, count: int, divisor: int, dense: Literal["rows", "inputs"]
    ) -> QuantizableWeight:
        name, apart = str(weight.name), self.is_operator
        return QuantizableWeight(
            name.removesuffix(".weight"), name, "experts", rows, inputs, transposed=not apart,
            count=count, operator=self.name, divisor=divisor, joined="stack" if apart else dense,
            active=self._number("k", 1) if apart else count,
        )  # fmt: skip

    def mixing(self, routing: Floats) -> Floats:
        """Weights `[tokens, E]` of each expert's output, 0 for those not taken, as the graph computes them."""
        if not self.is_operator:
            return routing
        shifted = np.exp(routing - routing.max(axis=1, keepdims=True))
        weights: Floats = shifted / shifted.sum(axis=1, keepdims=True)
        left_out = np.argsort(-routing, axis=1, kind="stable")[:, self._number("k", 1) :]
        np.put_along_axis(weights, left_out, 0, axis=1)
        if self._number("normalize_routing_weights", 0):
            weights /= weights.sum(axis=1, keepdims=True)
        return weights

    def inner(self, x: Floats, expert: int) -> Floats | None:
        """What one expert's `down` reads for inputs `[tokens, H]`: `[tokens, I]`; None if its gating is not known."""
        weight = _part(self.gate_up, expert)
        if self.is_operator:
            bias = 0 if self.bias is None else _part(self.bias, expert)
            product = x @ weight.T + bias
            return self._swiglu(product[:, 0::2], product[:, 1::2])
        activation = _ACTIVATIONS.get(self._activation().op_type)
        gate, up = np.split(x @ weight, 2, axis=1)
        return None if activation is None else activation(gate) * up

    def _swiglu(self, gate: Floats, up: Floats) -> Floats:
        attributes = self.first.attributes
        limit = attributes.get_float("swiglu_limit", math.inf)
        gate, up = np.minimum(gate, np.float32(limit)), np.clip(up, np.float32(-limit), np.float32(limit))
        alpha, beta = attributes.get_float("activation_alpha", 1.0), attributes.get_float("activation_beta", 0.0)
        return gate * _sigmoid(np.float32(alpha) * gate) * (up + np.float32(beta))

    def _activation(self) -> ir.Node:
        split = next(iter(self.first.outputs[0].consumers()))
        return next(iter(split.outputs[0].consumers()))

    def _number(self, attribute: str, default: int) -> int:
        return self.first.attributes.get_int(attribute, default)


def find_experts(graph: ir.Graph) -> Iterator[Experts]:
    """All mixtures of experts of a graph whose stacks can be quantized."""
    for node in graph:
        found = _operator(node) or _dense(node)
        if found and math.gcd(*(site.inputs for site in found.sites)) % _SMALLEST_GROUP == 0:
            yield found


def _operator(node: ir.Node) -> Experts | None:
    """Case 1."""
    attributes = node.attributes
    if node.op_type != "MoE" or attributes.get_int("swiglu_fusion", 0) != 1:
        return None
    x, routing, gate_up, bias, down = node.inputs[:5]
    if x is None or routing is None or gate_up is None or down is None or not (_is_own(gate_up) and _is_own(down)):
        return None
    return Experts(str(node.name), node, node, x, routing, gate_up, down, bias)


def _dense(node: ir.Node) -> Experts | None:
    """Case 2; `node` is the sum over the experts."""
    if node.op_type != "ReduceSum" or (product := _producer(node.inputs[0], "MatMul")) is None:
        return None
    down = product.inputs[1]
    weighted = _producer(product.inputs[0], "Mul")
    gated = _producer(weighted.inputs[0], "Mul") if weighted else None
    split = _producer(gated.inputs[1], "Split") if gated else None
    first = _producer(split.inputs[0], "MatMul") if split else None
    transposed = weighted.inputs[1] if weighted else None
    for kind in ("Unsqueeze", "Transpose"):
        turning = _producer(transposed, kind)
        transposed = turning.inputs[0] if turning else None
    if first is None or transposed is None or down is None or (gate_up := first.inputs[1]) is None:
        return None
    if not (_is_own(gate_up) and _is_own(down)) or (x := first.inputs[0]) is None:
        return None
    name = str(node.name).rpartition(".")[0]
    return Experts(name, first, node, x, transposed, gate_up, down, None)


def _producer(value: ir.Value | None, kind: str) -> ir.Node | None:
    node = value.producer() if value is not None else None
    return node if node is not None and node.op_type == kind else None


def _is_own(value: ir.Value) -> bool:
    """A stack of float32 matrices on disk that nothing else reads."""
    tensor = value.const_value
    stack = isinstance(tensor, ir.ExternalTensor) and len(tensor.shape) == 3 and tensor.dtype == ir.DataType.FLOAT
    return stack and len(list(value.consumers())) == 1


def _shape(value: ir.Value) -> tuple[int, int, int]:
    assert value.const_value is not None
    count, first, second = value.const_value.shape.numpy()
    return count, first, second


def _part(value: ir.Value, expert: int) -> Floats:
    assert value.const_value is not None
    return read_part(value.const_value, expert)


def _sigmoid(x: Floats) -> Floats:
    with np.errstate(over="ignore"):
        result: Floats = np.float32(1) / (np.float32(1) + np.exp(-x))
    return result


def _gelu_tanh(x: Floats) -> Floats:
    cubic: Floats = x + np.float32(0.044715) * x**3
    result: Floats = np.float32(0.5) * x * (1 + np.tanh(np.float32(math.sqrt(2 / math.pi)) * cubic))
    return result


_ACTIVATIONS: dict[str, Callable[[Floats], Floats]] = {"FastGelu": _gelu_tanh, "Relu": lambda x: np.maximum(x, 0)}
