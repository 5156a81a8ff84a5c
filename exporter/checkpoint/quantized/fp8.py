"""8-bit floats (e4m3) times a scale per tensor, row or block. Their steps are uneven: they have no integer codes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from runtime.errors import UnsupportedError

from ..checkpoint import FloatArray, PackedTensor, TensorSource
from ..safetensors.file import SafetensorsTensor
from ..stored import require_finite
from .codes import to_scales
from .matrices import Settings, Stored, others, stems

# Despite its name, weight_scale_inv is multiplied like weight_scale.
SCALES = (".weight_scale_inv", ".weight_scale")
ACTIVATIONS = (".activation_scale", ".input_scale", ".input_scale_ub", ".k_scale", ".v_scale")


@dataclass(frozen=True)
class Fp8Tensor:
    """[N, K] or [E, N, K]. `block`: rows and columns that share a scale, where blocks do."""

    stored: SafetensorsTensor
    scales: SafetensorsTensor
    block: Sequence[int]

    def __post_init__(self) -> None:
        if self.stored.dtype != "F8_E4M3":
            raise UnsupportedError(f"{self.name}: stored as {self.stored.dtype}; with scales, F8_E4M3 is supported.")

    @property
    def name(self) -> str:
        """Name of the weight."""
        return self.stored.name

    @property
    def shape(self) -> tuple[int, ...]:
        """[N, K] or [E, N, K]."""
        return self.stored.shape

    @property
    def dtype(self) -> str:
        """The stored type."""
        return self.stored.dtype

    def read(self) -> FloatArray:
        """The values in float32."""
        values: FloatArray = E4M3[self.stored.raw()]
        values *= self._spread(to_scales(self.scales.read(), self.name))
        require_finite(values, self.name)
        return values

    def matrix(self, index: int) -> "Fp8Tensor | None":
        """One of several matrices, with its own scales."""
        if len(self.shape) != 3 or len(self.scales.shape) != 3 or self.scales.shape[0] != self.shape[0]:
            return None
        return Fp8Tensor(self.stored.matrix(index), self.scales.matrix(index), self.block)

    def packed(self) -> PackedTensor | None:
        """None."""
        return None

    def _spread(self, scales: FloatArray) -> FloatArray:
        """Scales that broadcast to the weight: one, one per row, or blocks repeated over their rows and columns."""
        if scales.size == 1:
            return scales.reshape(())
        scales = scales if scales.ndim > 1 else scales[:, None]
        for axis, step in zip((-2, -1), self.block, strict=True):
            count, size = scales.shape[axis], self.shape[axis]
            if count > 1:
                step = step if count == -(-size // step) else -(-size // count)
                scales = np.take(scales, np.arange(size) // step, axis=axis)
        return scales


def combine(stored: Stored, settings: Settings) -> dict[str, TensorSource]:
    """`X.weight` and `X.weight_scale_inv` or `X.weight_scale` become `X.weight`."""
    result = others(stored, *SCALES, *ACTIVATIONS)
    for ending in SCALES:
        for stem in stems(stored, ending):
            block = settings.get("weight_block_size") or (1, 1)
            result[f"{stem}.weight"] = Fp8Tensor(stored[f"{stem}.weight"], stored[stem + ending], block)
    return result


def _e4m3() -> FloatArray:
    """The value of every byte: sign, 4 bits of exponent (bias 7), 3 of fraction. 0x7F is NaN; none is infinite."""
    byte = np.arange(256)
    exponent, fraction = (byte >> 3) & 15, byte & 7
    size = np.where(exponent == 0, np.ldexp(fraction / 8.0, -6), np.ldexp(1 + fraction / 8.0, exponent - 7))
    size[byte & 127 == 127] = np.nan
    return np.where(byte < 128, size, -size).astype(np.float32)


E4M3 = _e4m3()
