"""The bytes of MatMulNBits: codes packed low bits first, groups padded whole, zero points packed row by row."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from ml_dtypes import bfloat16

from .matrix import Codes, QuantizedMatrix
from .scheme import QuantConfig

_STEP_BYTES = 2


@dataclass(frozen=True)
class PackedMatrix:
    """What goes into weights.bin for one matrix of `rows` outputs and `inputs` inputs.

    Attributes:
        codes: uint8 `[N, groups, group_size * bits / 8]`; the padding of a short last group decodes to zero.
        scales: `[N, groups]`, in their stored type, or 8-bit multiples of the steps.
        zero_points: uint8 `[N, ceil(groups * bits / 8)]`, each row padded to whole bytes; None if symmetric.
        steps: bfloat16 `[N, 1]`; None where scales are floats.
    """

    codes: Codes
    scales: npt.NDArray[np.floating] | npt.NDArray[np.integer]
    zero_points: Codes | None
    steps: npt.NDArray[np.floating] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays together."""
        return sum(a.nbytes for a in (self.codes, self.scales, self.zero_points, self.steps) if a is not None)


def pack(matrix: QuantizedMatrix, stored: npt.DTypeLike = np.float32) -> PackedMatrix:
    """Pack a quantized matrix; its scales must be exact in the type `stored`."""
    scheme = matrix.scheme
    codes = _fill_last_group(matrix)
    rows, padded = codes.shape
    packed = _pack_bits(codes, scheme.bits).reshape(rows, padded // scheme.group_size, -1)
    zero_points = None if matrix.zero_points is None else pack_rows(matrix.zero_points, scheme.bits)
    if matrix.steps:
        steps = matrix.steps.values.astype(bfloat16)[:, None]
        return PackedMatrix(packed, _transposed(matrix.steps.encode(matrix.scales.T)), zero_points, steps)
    scales = matrix.scales.astype(stored)
    assert np.array_equal(scales.astype(np.float32), matrix.scales)
    return PackedMatrix(packed, scales, zero_points)


def packed_bytes(rows: int, inputs: int, config: QuantConfig, scale_bytes: int) -> int:
    """Bytes of `[rows, inputs]`, padding and residual channels included; `scale_bytes` for each float scale."""
    scheme = config.scheme
    groups = scheme.groups(inputs) + scheme.groups(min(config.residual_channels, inputs))
    zero_points = 0 if scheme.symmetric else math.ceil(groups * scheme.bits / 8)
    steps = 0 if scheme.scale_bits == 16 else _STEP_BYTES
    each = scale_bytes if scheme.scale_bits == 16 else 1
    return int(rows * (groups * (scheme.group_size * scheme.bits // 8 + each) + zero_points + steps))


def _fill_last_group(matrix: QuantizedMatrix) -> Codes:
    rows, inputs = matrix.codes.shape
    missing = matrix.scales.shape[1] * matrix.scheme.group_size - inputs
    if not missing:
        return matrix.codes
    zero = np.full(rows, matrix.scheme.middle, np.uint8) if matrix.zero_points is None else matrix.zero_points[:, -1]
    return np.concatenate([matrix.codes, np.repeat(zero[:, None], missing, axis=1)], axis=1)


def pack_rows(codes: Codes, bits: int) -> Codes:
    """`[N, M]` codes → bytes, each row padded to whole ones."""
    return _pack_bits(np.pad(codes, ((0, 0), (0, -codes.shape[1] % (8 // bits)))), bits)


def _pack_bits(codes: Codes, bits: int) -> Codes:
    """`[N, M]` codes → `[N, M * bits / 8]` bytes; the first code of a byte is in its low bits."""
    if bits == 8:
        return np.ascontiguousarray(codes)
    pairs = np.ascontiguousarray(codes).view("<u2")  # the second code is in the high byte
    packed: Codes = (pairs | (pairs >> np.uint16(4))).astype(np.uint8)
    return packed


def _transposed(array: npt.NDArray[np.integer]) -> npt.NDArray[np.integer]:
    return np.ascontiguousarray(array.T)
