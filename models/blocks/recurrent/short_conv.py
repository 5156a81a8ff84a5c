"""Gated short convolutions in place of attention (LFM2)."""

from typing import Any

from onnxscript.nn import Module

from ...decoder import description
from ...targets.target import Target
from ..linear import Linear
from ..step import Step
from .state_conv import StateConv, from_float32


class ShortConv(Module):
    """x `[batch, sequence, H]` → the same shape; past and present: one `[batch, H, kernel - 1]`."""

    def __init__(self, about: description.ShortConv, hidden_size: int, target: Target, output_scale: float) -> None:
        super().__init__()
        self.target = target
        self.in_proj = Linear(hidden_size, 3 * about.channels, about.bias, target)
        self.conv = StateConv(about.channels, about.kernel, about.bias, target)
        self.out_proj = Linear(about.channels, hidden_size, about.bias, target, scale=output_scale)

    def forward(self, op: Any, x: Any, _step: Step, past: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        """Emit the projections, the convolution of b * x and its product with c."""
        before, after, x = op.Split(self.in_proj(op, x), axis=-1, num_outputs=3, _outputs=3, _name="split")
        convolved, present = self.conv(op, op.Mul(before, x, _name="gated"), past[0])
        output = op.Mul(after, from_float32(op, convolved, self.target, "narrow"), _name="output")
        return self.out_proj(op, output), (present,)
