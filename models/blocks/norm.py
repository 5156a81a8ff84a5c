"""RMS norms (Zhang and Sennrich 2019), alone or with the residual addition before them."""

from typing import Any

from onnxscript.nn import Module

from ..target import Target
from .parameter import parameter


class RMSNorm(Module):
    """`x * rsqrt(mean(x²) + epsilon) * weight` over the last axis."""

    def __init__(self, size: int, epsilon: float, target: Target) -> None:
        super().__init__()
        self.weight = parameter((size,), target)
        self.epsilon = epsilon

    def forward(self, op: Any, branch: Any, residual: Any = None) -> tuple[Any, Any]:
        """Emit norm(branch + residual); returns it and the sum, which is the new residual."""
        if residual is None:
            return op.RMSNormalization(branch, self.weight, epsilon=self.epsilon, axis=-1), branch
        normed, _, _, total = op.SkipSimplifiedLayerNormalization(
            branch, residual, self.weight, epsilon=self.epsilon, _domain="com.microsoft", _outputs=4
        )
        return normed, total
