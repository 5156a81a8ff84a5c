"""What weights.bin holds of a quantized matrix: the initializers that graphs read."""

from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from .matrix import Floats, Index
from .scheme import Scheme


@dataclass(frozen=True)
class OutlierWeights:
    """The outlier channels of a matrix, `index` `[L]`, and their weights, `values` `[L, N]`."""

    index: Index
    values: Floats


@dataclass(frozen=True)
class StoredOutliers:
    """Initializers of outlier channels: `channels` int64 `[L]`, `weights` `[L, rows]`, `mask` `[inputs]` of 0 and 1."""

    channels: ir.ExternalTensor
    weights: ir.ExternalTensor
    mask: ir.ExternalTensor


@dataclass(frozen=True)
class StoredMatrix:
    """The initializers of one quantized matrix: uint8 codes, scales in float or float16, zero points or None.

    With `steps` `[rows, 1]`, `scales` are 8-bit multiples of them.

    `residuals` holds `index`, the inputs that are read a second time; None if there are none.
    """

    scheme: Scheme
    rows: int
    inputs: int
    codes: ir.ExternalTensor
    scales: ir.ExternalTensor
    zero_points: ir.ExternalTensor | None
    residuals: ir.ExternalTensor | None = None
    index: Index = field(default_factory=lambda: np.zeros(0, np.int64))
    steps: ir.ExternalTensor | None = None
    beside: StoredOutliers | None = None

    @property
    def width(self) -> int:
        """Inputs, and those that are repeated."""
        return self.inputs + len(self.index)
