"""Norms over the last axis, alone or with the residual addition before them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnxscript.nn import Module

from ..decoder import description
from ..targets.target import Target
from .parameter import Plan, constant, parameter


class Norm(Module):
    """`normalise(x) * weight + bias`; weight and bias have `shape`, the last of which is the normalised size."""

    def __init__(self, about: description.Norm, shape: Sequence[int], target: Target, plan: Plan | None = None) -> None:
        super().__init__()
        self.about = about
        plan = plan or Plan(offset=about.offset)
        self.weight = parameter(shape, target, plan) if about.weight else constant(np.ones(shape, np.float32), target)
        self.bias = self._bias(shape, target)

    def _bias(self, shape: Sequence[int], target: Target) -> Any:
        """LayerNorms always get one: ONNX Runtime's SkipLayerNormalization crashes without."""
        if self.about.bias:
            return parameter(shape, target)
        return constant(np.zeros(shape, np.float32), target) if self.about.kind == "layer" else None

    def forward(self, op: Any, x: Any) -> Any:
        """Emit the norm of x."""
        if self.about.kind == "rms":
            return op.RMSNormalization(x, self.weight, epsilon=self.about.epsilon, axis=-1)
        return op.LayerNormalization(x, self.weight, self.bias, epsilon=self.about.epsilon, axis=-1)


class ResidualNorm(Norm):
    """The norm of a sum that is not computed yet: the residual addition happens inside the operator."""

    def forward(self, op: Any, branch: Any, residual: Any = None) -> tuple[Any, Any]:
        """Emit norm(branch + residual); returns it and the sum, which is the new residual."""
        if residual is None:
            return super().forward(op, branch), branch
        kind = "SkipSimplifiedLayerNormalization" if self.about.kind == "rms" else "SkipLayerNormalization"
        inputs = [branch, residual, self.weight] + ([self.bias] if self.bias is not None else [])
        normed, _, _, total = getattr(op, kind)(
            *inputs, epsilon=self.about.epsilon, _domain="com.microsoft", _outputs=4
        )
        return normed, total
