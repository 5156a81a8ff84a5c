"""A mixture of experts beside the dense MLP of its layer (Gemma 4)."""

from typing import Any

from onnxscript.nn import Module

from ...decoder import description
from ...targets.target import Target
from ..norm import Norm
from .moe import MoE


class Beside(Module):
    """The stream `[batch, sequence, H]` and the MLP's output → the sum of both branches, each normed."""

    def __init__(self, about: description.Beside, hidden_size: int, target: Target) -> None:
        super().__init__()
        shape = (hidden_size,)
        self.pre_norm = Norm(about.norm, shape, target)
        self.moe = MoE(about.moe, hidden_size, target)
        self.post_norm = Norm(about.norm, shape, target)
        self.mlp_norm = Norm(about.norm, shape, target)

    def forward(self, op: Any, stream: Any, output: Any) -> Any:
        """Emit the experts, routed by the stream itself, and the sum."""
        experts = self.post_norm(op, self.moe(op, self.pre_norm(op, stream), stream))
        return op.Add(self.mlp_norm(op, output), experts, _name="sum")
