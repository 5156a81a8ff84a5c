"""How scales are stored: in a float type, or as 8-bit multiples of a step that each row has.

The second form is the double quantization of QLoRA (Dettmers et al., 2023, arXiv:2305.14314), less its offset. It saves
8 / group size bits for each weight and costs nothing when it runs: ONNX Runtime multiplies the codes out when it loads.
Grids are searched among the scales that can be stored, so that the loss in quality is a fraction of a percent.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from ml_dtypes import bfloat16

from .scheme import Scheme

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Steps:
    """Scales are `values[n]` times a code: 0 … 255, or -127 … 127 where they have signs.

    Attributes:
        values: `[N]`, exact in bfloat16, in which they are stored: the range of float32 in half its bytes.
        signed: whether codes are.
    """

    values: Floats
    signed: bool

    def rows(self, part: slice) -> "Steps":
        """Those of some rows."""
        return Steps(self.values[part], self.signed)

    def encode(self, scales: Floats) -> npt.NDArray[np.int8] | npt.NDArray[np.uint8]:
        """Codes of `scales` `[…, N]`; what is not zero does not become zero."""
        codes = np.rint(scales / np.where(self.values == 0, np.float32(1), self.values))
        codes = np.where((codes == 0) & (scales != 0), np.copysign(np.float32(1), scales), codes)
        return np.clip(codes, -127, 127).astype(np.int8) if self.signed else np.clip(codes, 0, 255).astype(np.uint8)

    def round(self, scales: Floats) -> Floats:
        """The nearest scales that can be stored."""
        return self.encode(scales) * self.values


Stored = npt.DTypeLike | Steps


def round_scales(scales: Floats, stored: Stored) -> Floats:
    """`scales` `[…, N]` as they will be stored, in float32."""
    if isinstance(stored, Steps):
        return stored.round(scales)
    return scales.astype(stored).astype(np.float32)


def rows_of(stored: Stored, part: slice) -> Stored:
    """How the scales of some rows are stored."""
    return stored.rows(part) if isinstance(stored, Steps) else stored


def plan_scales(weight: Floats, scheme: Scheme, kind: npt.DTypeLike) -> Stored:
    """How the scales of `weight` `[N, K]` are stored, `kind` being the float type that suits them.

    A step is such that a grid over the widest group of the row just fits.
    """
    if scheme.scale_bits != 8:
        return kind
    starts = np.arange(0, weight.shape[1], scheme.group_size)
    low = np.minimum(np.minimum.reduceat(weight, starts, axis=1), 0)
    high = np.maximum(np.maximum.reduceat(weight, starts, axis=1), 0)
    if scheme.symmetric:
        largest = np.maximum(-low, high).max(axis=1, initial=0) / (scheme.middle - 0.5) / 127
    else:
        largest = (high - low).max(axis=1, initial=0) / scheme.levels / 255
    return Steps(largest.astype(bfloat16).astype(np.float32), scheme.symmetric)
