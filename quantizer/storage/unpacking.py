"""Read packed bytes back by another path than they were written, and compare: nothing is stored unchecked."""

from functools import cache, partial

import numpy as np
import numpy.typing as npt

from runtime.errors import QuantizationError

from ..parallel import parallel_map
from .matrix import Floats, QuantizedMatrix
from .packing import PackedMatrix

_CHUNK = 1 << 20


def require_round_trip(name: str, packed: PackedMatrix, matrix: QuantizedMatrix) -> None:
    """Compare what the packed bytes decode to with the matrix they were made from, number by number, on all cores.

    Raises:
        QuantizationError: they differ, which is a fault in onnxlm.
    """
    rows, inputs = matrix.codes.shape
    step = max(1, _CHUNK // inputs)
    parts = (slice(start, min(start + step, rows)) for start in range(0, rows, step))
    if not all(parallel_map(partial(_is_equal, packed, matrix, part) for part in parts)):
        raise QuantizationError(f"{name}: the packed bytes do not decode to the quantized weights; report this.")


def _is_equal(packed: PackedMatrix, matrix: QuantizedMatrix, part: slice) -> bool:
    """Codes, zero points and scales of some rows; what fills a short last group must decode to zero."""
    scheme, own = matrix.scheme, _rows(packed, part)
    rows, inputs = part.stop - part.start, matrix.codes.shape[1]
    codes = read_fields(own.codes.reshape(rows, -1), scheme.bits)
    zeros: npt.NDArray[np.uint8] = np.full(own.scales.shape, 1 << (scheme.bits - 1), np.uint8)
    expected = zeros
    if own.zero_points is not None:
        zeros = read_fields(own.zero_points, scheme.bits)[:, : own.scales.shape[1]]
    if matrix.zero_points is not None:
        expected = matrix.zero_points[part]
    return (
        codes.shape[1] == own.scales.shape[1] * scheme.group_size
        and np.array_equal(codes[:, :inputs], matrix.codes[part])
        and bool((codes[:, inputs:] == zeros[:, -1:]).all())
        and np.array_equal(zeros, expected)
        and np.array_equal(_scales(own), matrix.scales[part])
    )


def _scales(packed: PackedMatrix) -> Floats:
    scales: Floats = packed.scales.astype(np.float32)
    return scales if packed.steps is None else scales * packed.steps.astype(np.float32)


def read_fields(data: npt.NDArray[np.uint8], bits: int) -> npt.NDArray[np.uint8]:
    """`[N, B]` bytes → `[N, B * 8 / bits]` numbers, from the lowest bit up."""
    fields: npt.NDArray[np.uint8] = _table(bits)[data].reshape(len(data), -1)
    return fields


@cache
def _table(bits: int) -> npt.NDArray[np.uint8]:
    """The numbers in each of the 256 bytes, `[256, 8 / bits]`, put together bit by bit."""
    numbers = [
        [sum(byte >> (at + i) & 1 and 1 << i for i in range(bits)) for at in range(0, 8, bits)] for byte in range(256)
    ]
    return np.array(numbers, np.uint8)


def _rows(packed: PackedMatrix, part: slice) -> PackedMatrix:
    zero_points = None if packed.zero_points is None else packed.zero_points[part]
    steps = None if packed.steps is None else packed.steps[part]
    return PackedMatrix(packed.codes[part], packed.scales[part], zero_points, steps)
