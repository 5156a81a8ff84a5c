"""What a graph is emitted for: an execution provider, its activation type, and the oldest ONNX Runtime to run it."""

from dataclasses import dataclass
from typing import Literal

from .kernels import has_kernel
from .provider import Element
from .registry import PROVIDERS


@dataclass(frozen=True)
class Target:
    """One provider, one of the types that it computes in, and the oldest ONNX Runtime that must run the graph.

    From ONNX Runtime 1.32 on, attention takes chunks of several sequences at once: prefill then has query_seqlens.
    """

    provider: str = "cpu"
    dtype: Element = "float32"
    onnxruntime: Literal["1.31", "1.32"] = "1.31"

    def __post_init__(self) -> None:
        accepted = PROVIDERS[self.provider].dtypes
        if self.dtype not in accepted:
            raise ValueError(f"target {self.provider} computes in {' or '.join(accepted)}, not in {self.dtype}")

    def has_kernel(self, operator: str) -> bool:
        """Whether the provider computes an operator, such as `com.microsoft::MoE`, in the target's type."""
        return has_kernel(
            PROVIDERS[self.provider].kernel_column, operator, "float" if self.dtype == "float32" else self.dtype
        )
