"""The gated feed-forward network (Shazeer 2020)."""

from collections.abc import Callable
from typing import Any

from onnxscript.nn import Module

from .. import description
from ..target import Target
from .linear import Linear


def _silu(op: Any, x: Any) -> Any:
    return op.QuickGelu(x, alpha=1.0, _domain="com.microsoft", _name="silu")


_ACTIVATIONS: dict[str, Callable[[Any, Any], Any]] = {"silu": _silu}


class MLP(Module):
    """x `[batch, sequence, H]` → the same shape."""

    def __init__(self, about: description.MLP, hidden_size: int, target: Target) -> None:
        super().__init__()
        inner = about.intermediate_size
        self.activation = _ACTIVATIONS[about.activation]
        self.gate_up_proj = Linear(hidden_size, 2 * inner, about.bias, target)
        self.down_proj = Linear(inner, hidden_size, about.bias, target)

    def forward(self, op: Any, x: Any) -> Any:
        """Emit one matrix product for gate and up, the gating, and the projection down."""
        gate, up = op.Split(self.gate_up_proj(op, x), axis=-1, num_outputs=2, _outputs=2, _name="split")
        return self.down_proj(op, op.Mul(self.activation(op, gate), up, _name="gated"))
