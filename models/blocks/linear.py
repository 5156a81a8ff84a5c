"""A linear layer, stored `[in, out]` as MatMul wants it."""

from typing import Any

import numpy as np
import numpy.typing as npt
from onnxscript.nn import Module

from ..targets.target import Target
from .parameter import Plan, parameter


class Linear(Module):
    """`x @ weight + bias` for x `[..., in]`, weight `[in, out]`, bias `[out]`; both multiplied by `scale`.

    `out_index` and `in_index` say where the checkpoint's output and input channels go when the graph has more of them.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool,
        target: Target,
        *,
        in_index: npt.NDArray[np.int64] | None = None,
        out_index: npt.NDArray[np.int64] | None = None,
        scale: float = 1.0,
    ) -> None:
        super().__init__()
        plan = Plan(transposed=True, rows=out_index, columns=in_index, scale=scale)
        self.weight = parameter((in_features, out_features), target, plan)
        self.bias = parameter((out_features,), target, Plan(rows=out_index, scale=scale)) if bias else None

    def forward(self, op: Any, x: Any) -> Any:
        """Emit the product, and the bias as its own node."""
        y = op.MatMul(x, self.weight)
        return y if self.bias is None else op.Add(y, self.bias, _name="bias_add")
