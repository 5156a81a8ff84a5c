"""Feed-forward networks, gated (Shazeer 2020) or plain."""

from collections.abc import Callable
from statistics import NormalDist
from typing import Any

from onnxscript.nn import Module

from ..decoder import description
from ..targets.target import Target
from .linear import Linear
from .parameter import scalar
from .xielu import XIELU


def _relu2(op: Any, x: Any) -> Any:
    positive = op.Relu(x, _name="relu")
    return op.Mul(positive, positive, _name="squared")


def _microsoft(kind: str, **attributes: Any) -> Callable[[Any, Any], Any]:
    return lambda op, x: getattr(op, kind)(x, **attributes, _domain="com.microsoft", _name="activation")


ACTIVATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "silu": _microsoft("QuickGelu", alpha=1.0),
    "quick_gelu": _microsoft("QuickGelu", alpha=1.702),
    "gelu": _microsoft("Gelu"),
    "gelu_tanh": _microsoft("FastGelu"),
    "relu": lambda op, x: op.Relu(x, _name="activation"),
    "relu2": _relu2,
}


class MLP(Module):
    """x `[batch, sequence, H]` → the same shape, multiplied by `output_scale`."""

    def __init__(self, about: description.MLP, hidden_size: int, target: Target, output_scale: float = 1.0) -> None:
        super().__init__()
        inner = about.intermediate_size
        self.gated = about.gated
        if about.activation == "xielu":
            self.activation: Callable[[Any, Any], Any] = XIELU(target)
            self.activation._set_name("act_fn")
        else:
            self.activation = ACTIVATIONS[about.activation]
        self.sparsity, self.target = about.sparsity, target
        if about.gated:
            self.gate_up_proj = Linear(hidden_size, 2 * inner, about.bias, target)
        else:
            self.up_proj = Linear(hidden_size, inner, about.bias, target)
        self.down_proj = Linear(inner, hidden_size, about.bias, target, scale=output_scale)

    def forward(self, op: Any, x: Any) -> Any:
        """Emit one product for gate and up, the gating, and the projection down."""
        if not self.gated:
            return self.down_proj(op, self.activation(op, self.up_proj(op, x)))
        gate, up = op.Split(self.gate_up_proj(op, x), axis=-1, num_outputs=2, _outputs=2, _name="split")
        if self.sparsity:
            gate = self._sparse(op, gate)
        return self.down_proj(op, op.Mul(self.activation(op, gate), up, _name="gated"))

    def _sparse(self, op: Any, gate: Any) -> Any:
        """relu(gate - (mean + z * deviation)), z being the normal quantile of the sparsity."""
        mean = op.ReduceMean(gate, [-1], keepdims=1, _name="gate_mean")
        centred = op.Sub(gate, mean, _name="gate_centred")
        variance = op.ReduceMean(
            op.Mul(centred, centred, _name="gate_squared"), [-1], keepdims=1, _name="gate_variance"
        )
        quantile = scalar(op, NormalDist().inv_cdf(self.sparsity), self.target)
        cutoff = op.Mul(op.Sqrt(variance, _name="gate_deviation"), quantile, _name="gate_cutoff")
        return op.Relu(op.Sub(centred, cutoff, _name="gate_excess"), _name="gate_sparse")
