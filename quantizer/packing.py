"""The bytes of MatMulNBits: codes packed low bits first, groups padded whole, zero points packed row by row."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .matrix import Codes, QuantizedMatrix
from .scheme import Choice


@dataclass(frozen=True)
class PackedMatrix:
    """What goes into weights.bin for one matrix of `rows` outputs and `inputs` inputs.

    Attributes:
        codes: uint8 `[N, groups, group_size * bits / 8]`; the padding of a short last group decodes to zero.
        scales: `[N, groups]`, in their stored type.
        zero_points: uint8 `[N, ceil(groups * bits / 8)]`, each row padded to whole bytes; None if symmetric.
    """

    codes: Codes
    scales: npt.NDArray[np.floating]
    zero_points: Codes | None

    @property
    def nbytes(self) -> int:
        """Bytes of all three arrays together."""
        return self.codes.nbytes + self.scales.nbytes + (0 if self.zero_points is None else self.zero_points.nbytes)


def pack(matrix: QuantizedMatrix, stored: npt.DTypeLike = np.float32) -> PackedMatrix:
    """Pack a quantized matrix; its scales must be exact in the type `stored`."""
    scheme = matrix.scheme
    codes = _fill_last_group(matrix)
    rows, padded = codes.shape
    packed = _pack_bits(codes, scheme.bits).reshape(rows, padded // scheme.group_size, -1)
    scales = matrix.scales.astype(stored)
    assert np.array_equal(scales.astype(np.float32), matrix.scales)
    return PackedMatrix(packed, scales, None if matrix.zero_points is None else _pack_rows(matrix))


def packed_bytes(rows: int, inputs: int, choice: Choice, scale_bytes: int) -> int:
    """Bytes that `pack` will need for `[rows, inputs]`, padding and outliers included, with scales of `scale_bytes`."""
    scheme = choice.scheme
    groups = scheme.groups(inputs) + scheme.groups(min(choice.outliers, inputs))
    zero_points = 0 if scheme.symmetric else math.ceil(groups * scheme.bits / 8)
    return int(rows * (groups * (scheme.group_size * scheme.bits // 8 + scale_bytes) + zero_points))


def _fill_last_group(matrix: QuantizedMatrix) -> Codes:
    rows, inputs = matrix.codes.shape
    missing = matrix.scales.shape[1] * matrix.scheme.group_size - inputs
    if not missing:
        return matrix.codes
    zero = np.full(rows, matrix.scheme.middle, np.uint8) if matrix.zero_points is None else matrix.zero_points[:, -1]
    return np.concatenate([matrix.codes, np.repeat(zero[:, None], missing, axis=1)], axis=1)


def _pack_rows(matrix: QuantizedMatrix) -> Codes:
    assert matrix.zero_points is not None
    per_byte = 8 // matrix.scheme.bits
    missing = -matrix.zero_points.shape[1] % per_byte
    return _pack_bits(np.pad(matrix.zero_points, ((0, 0), (0, missing))), matrix.scheme.bits)


def _pack_bits(codes: Codes, bits: int) -> Codes:
    """`[N, M]` codes → `[N, M * bits / 8]` bytes; the first code of a byte is in its low bits."""
    if bits == 8:
        return np.ascontiguousarray(codes)
    low, high = codes[:, 0::2], codes[:, 1::2]
    return low | (high << np.uint8(4))
