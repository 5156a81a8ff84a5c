"""MXFP4 of gpt-oss: 4-bit floats, two a byte, with a power of two per 32 of them.

value = TABLE[nibble] * 2 ** (scale - 127), or with integers (2 * TABLE[nibble]) * 2 ** (scale - 128)
"""

from dataclasses import dataclass

import numpy as np

from ..checkpoint import FloatArray, PackedTensor, TensorSource
from ..safetensors.file import SafetensorsTensor
from .codes import unpack
from .matrices import Settings, Stored, others, stems

DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int16)
GROUP = 32


@dataclass(frozen=True)
class Mxfp4Tensor:
    """Experts [E, in, out] in the Hugging Face layout, or one; blocks are stored as [E, out, in / 32, 16]."""

    name: str
    blocks: SafetensorsTensor
    scales: SafetensorsTensor

    def __post_init__(self) -> None:
        if (
            self.blocks.shape[-1] != GROUP // 2
            or self.blocks.shape[:-1] != self.scales.shape
            or self.scales.dtype != "U8"
        ):
            raise ValueError(f"{self.name}: blocks {list(self.blocks.shape)}, scales {list(self.scales.shape)}")

    @property
    def shape(self) -> tuple[int, ...]:
        """[E, in, out]."""
        *experts, outputs, groups = self.scales.shape
        return (*experts, groups * GROUP, outputs)

    @property
    def dtype(self) -> str:
        """For messages."""
        return "MXFP4"

    def matrix(self, index: int) -> "Mxfp4Tensor":
        """One expert."""
        return Mxfp4Tensor(self.name, self.blocks.matrix(index), self.scales.matrix(index))

    def read(self) -> FloatArray:
        """The values in float32, [E, in, out]."""
        *experts, inputs, outputs = self.shape
        values = self.packed().dequantize().reshape(*experts, outputs, inputs)
        return np.ascontiguousarray(values.swapaxes(-1, -2))

    def packed(self) -> PackedTensor:
        """8-bit codes [E * out, in]: exact, since all values are multiples of half a scale."""
        inputs = self.shape[-2]
        codes = (DOUBLED + 128).astype(np.uint8)[unpack(self.blocks.raw(), 4)]
        scales = np.ldexp(np.float32(1), self.scales.raw().astype(np.int32) - 128)
        return PackedTensor(
            codes.reshape(-1, inputs), scales.reshape(-1, inputs // GROUP), None, 8, GROUP, transposed=True
        )


def combine(stored: Stored, settings: Settings) -> dict[str, TensorSource]:  # noqa: ARG001 the same for all methods
    """`X_blocks` and `X_scales` become `X`."""
    result = others(stored, "_blocks", "_scales")
    for stem in stems(stored, "_blocks"):
        result[stem] = Mxfp4Tensor(stem, stored[f"{stem}_blocks"], stored[f"{stem}_scales"])
    return result
