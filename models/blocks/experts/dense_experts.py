"""Experts whose gating the MoE operator does not have: all of them computed, weighted by how much each was wanted."""

from typing import Any

from onnxscript.nn import Module

from ...decoder import description
from ...targets.target import Target
from ..mlp import ACTIVATIONS
from ..parameter import Plan, parameter


class DenseExperts(Module):
    """x `[batch, sequence, H]` and weights `[tokens, E]`, 0 where an expert was not taken → x's shape.

    Weights are `[E, H, 2I]`, gates before ups, and `[E, I, H]`, the latter multiplied by `output_scale`.
    """

    def __init__(self, about: description.MoE, hidden_size: int, target: Target, output_scale: float) -> None:
        super().__init__()
        experts, inner = about.router.experts, about.expert.intermediate_size
        self.hidden_size, self.activation = hidden_size, ACTIVATIONS[about.expert.activation]
        self.gate_up_proj = EachLinear((experts, hidden_size, 2 * inner), target)
        self.down_proj = EachLinear((experts, inner, hidden_size), target, output_scale)

    def forward(self, op: Any, x: Any, weights: Any) -> Any:
        """Emit every expert's product for every token, and their weighted sum."""
        flat = op.Reshape(x, op.Constant(value_ints=[1, -1, self.hidden_size]), _name="tokens")
        gate, up = op.Split(self.gate_up_proj(op, flat), axis=-1, num_outputs=2, _outputs=2, _name="split")
        inner = op.Mul(self.activation(op, gate), up, _name="gated")
        by_expert = op.Unsqueeze(op.Transpose(weights, perm=[1, 0], _name="by_expert"), [2], _name="expert_column")
        outputs = self.down_proj(op, op.Mul(inner, by_expert, _name="weighted"))
        total = op.ReduceSum(outputs, op.Constant(value_ints=[0]), keepdims=0, _name="sum")
        return op.Reshape(total, op.Shape(x, _name="shape"), _name="output")


class EachLinear(Module):
    """x `[1 or E, tokens, in]` times `[E, in, out]`, times `scale`."""

    def __init__(self, shape: tuple[int, int, int], target: Target, scale: float = 1.0) -> None:
        super().__init__()
        self.weight = parameter(shape, target, Plan(stacked=True, transposed=True, scale=scale))

    def forward(self, op: Any, x: Any) -> Any:
        """Emit one product per expert."""
        return op.MatMul(x, self.weight)
