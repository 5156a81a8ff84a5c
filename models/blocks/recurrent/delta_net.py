"""The gated delta rule in place of attention (Qwen3-Next)."""

from typing import Any

import numpy as np
from onnxscript.nn import Module

from ...decoder import description
from ...targets.target import Target
from ..linear import Linear
from ..mlp import ACTIVATIONS
from ..norm import Norm
from ..parameter import constant, parameter
from ..step import Step
from .state_conv import FLOAT32, StateConv, from_float32, to_float32

_EPSILON = 1e-6  # of the queries' and keys' lengths


class DeltaNet(Module):
    """x `[batch, sequence, H]` → the same shape.

    Past and present: `[batch, channels, kernel - 1]` and `[batch, value_heads, key_dim, value_dim]`.
    """

    def __init__(self, about: description.DeltaNet, hidden_size: int, target: Target, output_scale: float) -> None:
        super().__init__()
        self.about, self.target = about, target
        self.values = about.value_heads * about.value_dim
        # [queries | keys | values | output gate | beta | alpha]
        self.sizes = [about.channels, self.values, about.value_heads, about.value_heads]
        self.in_proj = Linear(hidden_size, sum(self.sizes), False, target)
        self.conv = StateConv(about.channels, about.kernel, False, target, "silu")
        self.unit = UnitLength(about.key_heads, about.key_dim)
        self.dt_bias = parameter((about.value_heads,), FLOAT32)
        self.a_log = parameter((about.value_heads,), FLOAT32)
        self.norm = Norm(about.norm, (about.value_dim,), FLOAT32)
        self.out_proj = Linear(self.values, hidden_size, False, target, scale=output_scale)

    def forward(self, op: Any, x: Any, _step: Step, past: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        """Emit projections, convolution, recurrence, gated norm; returns the output and both states."""
        sizes = op.Constant(value_ints=self.sizes)
        packed, gate, beta, alpha = op.Split(self.in_proj(op, x), sizes, axis=-1, _outputs=4, _name="split")
        convolved, conv_state = self.conv(op, packed, past[0])
        keys = self.about.key_heads * self.about.key_dim
        widths = op.Constant(value_ints=[keys, keys, self.values])
        query, key, value = op.Split(convolved, widths, axis=-1, _outputs=3, _name="heads")
        mixed, state = op.LinearAttention(
            self.unit(op, query), self.unit(op, key), value, past[1], self._decay(op, alpha), self._beta(op, beta),
            q_num_heads=self.about.key_heads, kv_num_heads=self.about.value_heads, update_rule="gated_delta",
            _domain="com.microsoft", _outputs=2,
        )  # fmt: skip
        return self.out_proj(op, self._gated(op, mixed, gate)), (conv_state, state)

    def _decay(self, op: Any, alpha: Any) -> Any:
        """-exp(a_log) * softplus(alpha + dt_bias): the logarithm of what is left of the state."""
        rate = op.Neg(op.Exp(self.a_log, _name="rate"), _name="negative_rate")
        step = op.Add(to_float32(op, alpha, self.target, "alpha"), self.dt_bias, _name="biased")
        return op.Mul(rate, op.Softplus(step, _name="softplus"), _name="decay")

    def _beta(self, op: Any, beta: Any) -> Any:
        return op.Sigmoid(to_float32(op, beta, self.target, "beta_wide"), _name="beta")

    def _gated(self, op: Any, mixed: Any, gate: Any) -> Any:
        """norm(each head) * silu(gate)."""
        shape = op.Constant(value_ints=[0, 0, self.about.value_heads, self.about.value_dim])
        normed = self.norm(op, op.Reshape(mixed, shape, _name="by_head"))
        flat = op.Reshape(normed, op.Constant(value_ints=[0, 0, self.values]), _name="flat")
        open_gate = ACTIVATIONS["silu"](op, to_float32(op, gate, self.target, "gate_wide"))
        return from_float32(op, op.Mul(flat, open_gate, _name="gated"), self.target, "narrow")


class UnitLength(Module):
    """x `[batch, sequence, heads * size]` with each head divided by its length: an RMS norm in other terms."""

    def __init__(self, heads: int, size: int) -> None:
        super().__init__()
        self.heads, self.size = heads, size
        self.weight = constant(np.full(size, size**-0.5, np.float32), FLOAT32)

    def forward(self, op: Any, x: Any) -> Any:
        """Emit the norm between two reshapes."""
        by_head = op.Reshape(x, op.Constant(value_ints=[0, 0, self.heads, self.size]), _name="by_head")
        normed = op.RMSNormalization(by_head, self.weight, epsilon=_EPSILON / self.size, axis=-1)
        return op.Reshape(normed, op.Constant(value_ints=[0, 0, self.heads * self.size]), _name="flat")
