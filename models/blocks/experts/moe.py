"""A mixture of experts through the MoE operator, with an optional shared expert beside it."""

from typing import Any

import numpy as np
from onnxscript.nn import Module

from ...decoder import description
from ...targets.target import Target
from ..linear import Linear
from ..mlp import MLP
from ..parameter import DTYPES, Plan, parameter
from .dense_experts import DenseExperts
from .router import FLOAT32, Router


class MoE(Module):
    """x `[batch, sequence, H]` → the same shape, multiplied by `output_scale`."""

    def __init__(self, about: description.MoE, hidden_size: int, target: Target, output_scale: float = 1.0) -> None:
        super().__init__()
        self.about, self.target = about, target
        self.inner = target if target.has_kernel("com.microsoft::MoE") else FLOAT32
        output_scale *= about.scale
        dense = about.expert.activation != "silu"  # the operator knows no other gates
        self.gate = Router(about.router, hidden_size, dense)
        self.experts = (DenseExperts if dense else Experts)(
            about, hidden_size, self.inner, output_scale * about.router.scale
        )
        if about.shared is not None:
            self.shared_expert = MLP(about.shared, hidden_size, target, output_scale)
        if about.shared_gate:
            self.shared_expert_gate = Linear(hidden_size, 1, False, target)

    def forward(self, op: Any, x: Any, routed: Any = None) -> Any:
        """Emit routing (of x, or of `routed`), experts, and the sum with what the shared expert says."""
        routing, total = self.gate(op, self._cast(op, x if routed is None else routed, FLOAT32, "routed"))
        routing = self._cast(op, routing, self.inner, "routing", FLOAT32)
        output = self.experts(op, self._cast(op, x, self.inner, "wide"), routing)
        output = self._cast(op, output, self.target, "narrow", self.inner)
        if total is not None:
            # The shape of one channel: a Concat of sizes would run on the CPU, in the middle of a layer.
            column = op.Slice(x, [0], [1], [2], _name="token_column")
            total = op.Reshape(total, op.Shape(column, _name="tokens"), _name="total")
            output = op.Mul(output, self._cast(op, total, self.target, "total", FLOAT32), _name="weighted")
        return output if self.about.shared is None else self._add_shared(op, x, output)

    def _add_shared(self, op: Any, x: Any, output: Any) -> Any:
        shared = self.shared_expert(op, x)
        if self.about.shared_gate:
            share = op.Sigmoid(self.shared_expert_gate(op, x), _name="share")
            shared = op.Mul(shared, share, _name="shared")
        return op.Add(output, shared, _name="with_shared")

    def _cast(self, op: Any, x: Any, to: Target, name: str, of: Target | None = None) -> Any:
        if (of or self.target).dtype == to.dtype:
            return x
        return op.Cast(x, to=int(DTYPES[to.dtype]), _name=f"{name}.cast")


class Experts(Module):
    """x `[batch, sequence, H]` and routing `[tokens, E]` → x's shape.

    Weights are `[E, 2I, H]`, gate and up rows alternating, and `[E, H, I]`, the latter multiplied by `output_scale`.
    """

    def __init__(self, about: description.MoE, hidden_size: int, target: Target, output_scale: float) -> None:
        super().__init__()
        self.about = about
        experts, inner = about.router.experts, about.expert.intermediate_size
        # gates, then ups, as they come from the checkpoint
        alternating = np.arange(2 * inner).reshape(inner, 2).T.reshape(-1)
        self.gate_up_proj = StackedLinear(
            (experts, 2 * inner, hidden_size), about.expert.bias, target, Plan(rows=alternating, stacked=True)
        )
        self.down_proj = StackedLinear(
            (experts, hidden_size, inner), about.expert.bias, target, Plan(scale=output_scale, stacked=True)
        )

    def forward(self, op: Any, x: Any, routing: Any) -> Any:
        """Emit the operator."""
        about = self.about
        inputs = [*self.gate_up_proj(op), *self.down_proj(op)]
        if not about.expert.bias:
            inputs.pop()
        attributes = {} if about.limit is None else {"swiglu_limit": about.limit}
        return op.MoE(
            x, routing, *inputs, k=about.router.top_k,
            activation_type="swiglu", swiglu_fusion=1, activation_alpha=about.alpha, activation_beta=about.beta,
            normalize_routing_weights=int(about.router.normalize or not about.router.plain), **attributes,
            _domain="com.microsoft",
        )  # fmt: skip


class StackedLinear(Module):
    """Weights `[E, out, in]` and biases `[E, out]` of E linear layers."""

    def __init__(self, shape: tuple[int, int, int], bias: bool, target: Target, plan: Plan) -> None:
        super().__init__()
        self.weight = parameter(shape, target, plan)
        self.bias = parameter(shape[:2], target, plan) if bias else None

    def forward(self, _op: Any) -> tuple[Any, Any]:
        """Weights and biases, or None for none."""
        return self.weight, self.bias
