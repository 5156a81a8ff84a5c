"""A short causal convolution of each channel by itself, over a state that holds its last inputs."""

from typing import Any

from onnxscript.nn import Module

from ...targets.target import Target
from ..parameter import DTYPES, parameter

FLOAT32 = Target()  # states are float32, whatever the graph computes in


class StateConv(Module):
    """x `[batch, sequence, C]` and past `[batch, C, kernel - 1]` → float32 like x, and the present like the past."""

    def __init__(self, channels: int, kernel: int, bias: bool, target: Target, activation: str = "none") -> None:
        super().__init__()
        self.activation, self.target = activation, target
        self.weight = parameter((channels, 1, kernel), FLOAT32)
        self.bias = parameter((channels,), FLOAT32) if bias else None

    def forward(self, op: Any, x: Any, past: Any) -> tuple[Any, Any]:
        """Emit the convolution between two transpositions."""
        wide = to_float32(op, x, self.target, "wide")
        rows = op.Transpose(wide, perm=[0, 2, 1], _name="channels_first")
        convolved, present = op.CausalConvWithState(
            rows, self.weight, self.bias, past, activation=self.activation, _domain="com.microsoft", _outputs=2
        )
        return op.Transpose(convolved, perm=[0, 2, 1], _name="channels_last"), present


def to_float32(op: Any, x: Any, target: Target, name: str) -> Any:
    """x, cast from the target's type where that is another."""
    return x if target.dtype == "float32" else op.Cast(x, to=1, _name=name)


def from_float32(op: Any, x: Any, target: Target, name: str) -> Any:
    """x, cast to the target's type where that is another."""
    return x if target.dtype == "float32" else op.Cast(x, to=int(DTYPES[target.dtype]), _name=name)
