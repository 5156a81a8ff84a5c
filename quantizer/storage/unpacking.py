"""Read packed bytes back by another path than they were written, and compare: nothing is stored unchecked."""

import numpy as np
import numpy.typing as npt

from runtime.errors import QuantizationError

from .matrix import Floats, QuantizedMatrix
from .packing import PackedMatrix

_CHUNK = 1 << 20


def dequantize_packed(packed: PackedMatrix, bits: int, group_size: int, inputs: int) -> Floats:
    """The weights `[N, inputs]` that MatMulNBits sees in these bytes, decoded bit by bit."""
    rows, groups = packed.scales.shape
    codes = _read_fields(packed.codes.reshape(rows, -1), bits)[:, : groups * group_size]
    codes = codes.reshape(rows, groups, group_size)
    if packed.zero_points is None:
        zero = np.full((rows, groups), 1 << (bits - 1))
    else:
        zero = _read_fields(packed.zero_points, bits)[:, :groups]
    shifted = (codes - zero[:, :, None]).astype(np.float32)
    scales = packed.scales.astype(np.float32)
    if packed.steps is not None:
        scales *= packed.steps.astype(np.float32)
    weights: Floats = shifted * scales[:, :, None]
    return weights.reshape(rows, -1)[:, :inputs]


def require_round_trip(name: str, packed: PackedMatrix, matrix: QuantizedMatrix) -> None:
    """Compare the packed bytes with the matrix they were made from, bit for bit.

    Raises:
        QuantizationError: they differ, which is a fault in onnxlm.
    """
    rows, inputs = matrix.codes.shape
    scheme = matrix.scheme
    step = max(1, _CHUNK // inputs)
    for start in range(0, rows, step):
        part = slice(start, start + step)
        read = dequantize_packed(_rows(packed, part), scheme.bits, scheme.group_size, inputs)
        if not np.array_equal(read, matrix.rows(part).dequantize()):
            raise QuantizationError(f"{name}: the packed bytes do not decode to the quantized weights; report this.")


def _read_fields(data: npt.NDArray[np.uint8], bits: int) -> npt.NDArray[np.int32]:
    """`[N, B]` bytes → `[N, B * 8 / bits]` numbers, from the lowest bit up."""
    stream = np.unpackbits(data, axis=1, bitorder="little").reshape(len(data), -1, bits)
    return np.packbits(stream, axis=2, bitorder="little")[:, :, 0].astype(np.int32)


def _rows(packed: PackedMatrix, part: slice) -> PackedMatrix:
    zero_points = None if packed.zero_points is None else packed.zero_points[part]
    steps = None if packed.steps is None else packed.steps[part]
    return PackedMatrix(packed.codes[part], packed.scales[part], zero_points, steps)
