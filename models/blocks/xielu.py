"""xIELU (Huang and Schlag 2024): a quadratic above zero, an exponential below, each of a learned size."""

from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript.nn import Module

from ..targets.target import Target
from .parameter import parameter
from .recurrent.state_conv import FLOAT32, from_float32, to_float32

BETA, EPSILON = 0.5, -1e-6  # constants of the class, which files carry along


class XIELU(Module):
    """x `[batch, sequence, I]` → `p * x * x + beta * x` above zero, `n * (exp(x) - 1 - x) + beta * x` below."""

    def __init__(self, target: Target) -> None:
        super().__init__()
        self.target = target
        self.alpha_p, self.alpha_n = parameter((1,), FLOAT32), parameter((1,), FLOAT32)

    def forward(self, op: Any, x: Any) -> Any:
        """Emit both sides in float32: their differences of near numbers need it."""
        x = to_float32(op, x, self.target, "wide")
        positive = op.Softplus(self.alpha_p, _name="positive_size")
        negative = op.Add(op.Softplus(self.alpha_n, _name="negative_rest"), _number(op, BETA), _name="negative_size")
        above = op.Mul(op.Mul(x, x, _name="squared"), positive, _name="quadratic")
        growth = op.Sub(op.Exp(op.Min(x, _number(op, EPSILON), _name="low")), _number(op, 1.0), _name="growth")
        below = op.Mul(op.Sub(growth, x, _name="bend"), negative, _name="exponential")
        curved = op.Where(op.Greater(x, _number(op, 0.0), _name="above_zero"), above, below, _name="curved")
        total = op.Add(curved, op.Mul(x, _number(op, BETA), _name="linear"), _name="total")
        return from_float32(op, total, self.target, "narrow")


def _number(op: Any, value: float) -> Any:
    return op.Constant(value=ir.tensor(np.array(value, np.float32)))
