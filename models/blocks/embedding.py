"""Look-up tables."""

from typing import Any

from onnxscript.nn import Module

from ..targets.target import Target
from .parameter import parameter


class Embedding(Module):
    """ids `[...]` → `[..., width]`; the table is `[rows, width]`."""

    def __init__(self, rows: int, width: int, target: Target) -> None:
        super().__init__()
        self.weight = parameter((rows, width), target)

    def forward(self, op: Any, ids: Any) -> Any:
        """Emit the look-up."""
        return op.Gather(self.weight, ids)
