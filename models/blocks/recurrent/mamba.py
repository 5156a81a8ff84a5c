"""State-space layers in place of attention (Mamba 2), as gated linear attention."""

from dataclasses import replace
from typing import Any

from onnxscript.nn import Module

from ...decoder import description
from ...targets.target import Target
from ..linear import Linear
from ..mlp import ACTIVATIONS
from ..norm import Norm
from ..parameter import parameter
from ..step import Step
from .state_conv import FLOAT32, StateConv, from_float32, to_float32


class Mamba(Module):
    """x `[batch, sequence, H]` → the same shape.

    Past and present: `[batch, channels, kernel - 1]` and `[batch, heads, state, head_dim]`.
    """

    def __init__(self, about: description.Mamba, hidden_size: int, target: Target, output_scale: float) -> None:
        super().__init__()
        self.about, self.target = about, target
        self.inner = about.heads * about.head_dim
        self.sizes = [self.inner, about.channels, about.heads]  # [gate | x, B, C | dt]
        self.in_proj = Linear(hidden_size, sum(self.sizes), about.bias, target)
        self.conv = StateConv(about.channels, about.kernel, about.conv_bias, target, "silu")
        self.dt_bias, self.a_log, self.d = (parameter((about.heads,), FLOAT32) for _ in range(3))
        self.norm = Norm(replace(about.norm, weight=False), (self.inner // about.groups,), FLOAT32)
        self.norm_weight = parameter((self.inner,), FLOAT32)
        self.out_proj = Linear(self.inner, hidden_size, about.bias, target, scale=output_scale)

    def forward(self, op: Any, x: Any, _step: Step, past: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        """Emit projection, convolution, recurrence, gated norm; returns the output and both states."""
        sizes = op.Constant(value_ints=self.sizes)
        gate, packed, dt = op.Split(self.in_proj(op, x), sizes, axis=-1, _outputs=3, _name="split")
        convolved, conv_state = self.conv(op, packed, past[0])
        shared = self.about.groups * self.about.state
        widths = op.Constant(value_ints=[self.inner, shared, shared])
        inner, b, c = op.Split(convolved, widths, axis=-1, _outputs=3, _name="parts")
        step = self._step_size(op, dt)
        heads = self._by_head(op, inner, "x_heads")
        value = op.Mul(heads, op.Unsqueeze(step, [3], _name="dt_column"), _name="x_dt")
        mixed, state = op.LinearAttention(
            self._repeat(op, c, "c"), self._repeat(op, b, "b"), self._flat(op, value, "value"), past[1],
            self._decay(op, step), q_num_heads=self.about.heads, kv_num_heads=self.about.heads,
            update_rule="gated", scale=1.0, _domain="com.microsoft", _outputs=2,
        )  # fmt: skip
        passed = op.Mul(heads, op.Unsqueeze(self.d, [1], _name="d_column"), _name="passed")
        output = op.Add(mixed, self._flat(op, passed, "passed_flat"), _name="output")
        return self.out_proj(op, self._gated(op, output, gate)), (conv_state, state)

    def _step_size(self, op: Any, dt: Any) -> Any:
        """softplus(dt + bias) within its limits, `[batch, sequence, heads]`."""
        biased = op.Add(to_float32(op, dt, self.target, "dt_wide"), self.dt_bias, _name="biased")
        step, (low, high) = op.Softplus(biased, _name="dt"), self.about.time_limit
        if (low, high) == (0.0, float("inf")):
            return step
        return op.Clip(step, op.Constant(value_float=low), op.Constant(value_float=high), _name="dt_limited")

    def _decay(self, op: Any, step: Any) -> Any:
        rate = op.Neg(op.Exp(self.a_log, _name="rate"), _name="negative_rate")
        return op.Mul(step, rate, _name="decay")

    def _repeat(self, op: Any, x: Any, name: str) -> Any:
        """Each group for all its heads: `[batch, sequence, groups * state]` → `[batch, sequence, heads * state]`."""
        about = self.about
        each = about.heads // about.groups
        groups = op.Reshape(x, op.Constant(value_ints=[0, 0, about.groups, 1, about.state]), _name=f"{name}_groups")
        tiled = op.Tile(groups, op.Constant(value_ints=[1, 1, 1, each, 1]), _name=f"{name}_tiled")
        return op.Reshape(tiled, op.Constant(value_ints=[0, 0, about.heads * about.state]), _name=f"{name}_heads")

    def _by_head(self, op: Any, x: Any, name: str) -> Any:
        return op.Reshape(x, op.Constant(value_ints=[0, 0, self.about.heads, self.about.head_dim]), _name=name)

    def _flat(self, op: Any, x: Any, name: str) -> Any:
        return op.Reshape(x, op.Constant(value_ints=[0, 0, self.inner]), _name=name)

    def _gated(self, op: Any, output: Any, gate: Any) -> Any:
        """norm(output * silu(gate)), each group of heads by itself."""
        opened = ACTIVATIONS["silu"](op, to_float32(op, gate, self.target, "gate_wide"))
        groups = op.Constant(value_ints=[0, 0, self.about.groups, self.inner // self.about.groups])
        normed = self.norm(op, op.Reshape(op.Mul(output, opened, _name="gated"), groups, _name="norm_groups"))
        scaled = op.Mul(self._flat(op, normed, "normed"), self.norm_weight, _name="scaled")
        return from_float32(op, scaled, self.target, "narrow")
