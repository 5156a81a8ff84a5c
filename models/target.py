"""What a graph is emitted for: an execution provider and its activation type."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Target:
    """CPU graphs compute in float32; CUDA graphs in float16 or bfloat16, as its attention kernel has no float32."""

    provider: Literal["cpu", "cuda"] = "cpu"
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"

    def __post_init__(self) -> None:
        accepted = {"cpu": ("float32", "float16"), "cuda": ("float16", "bfloat16")}[self.provider]
        if self.dtype not in accepted:
            raise ValueError(f"target {self.provider} computes in {' or '.join(accepted)}, not in {self.dtype}")
