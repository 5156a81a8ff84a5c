"""Block formats whose values are integers times a scale: the same numbers as codes for MatMulNBits.

Every format is a *unit block* in which all integers and all scales are 1. Data with the scale bytes of the unit block
dequantizes to the integers; the unit block with the scale bytes of the data dequantizes to the scales.
"""

from dataclasses import dataclass

import numpy as np

from ..checkpoint import PackedTensor
from ..stored import Bytes, FileRange, chunks, require_finite
from .blocks import block_format

ONE = b"\x00\x3c"  # 1.0 in float16


@dataclass(frozen=True)
class ExactFormat:
    """One block format. `scales`: first and last + 1 of the scale bytes. `bits`, `group`: as MatMulNBits stores it."""

    bits: int
    group: int
    unit: bytes
    scales: tuple[int, int] = (0, 2)


EXACT = {
    "Q4_0": ExactFormat(4, 32, ONE + b"\x99" * 16),
    "Q5_0": ExactFormat(8, 32, ONE + b"\xff" * 4 + b"\x11" * 16),
    "Q8_0": ExactFormat(8, 32, ONE + b"\x01" * 32),
    "Q3_K": ExactFormat(4, 16, b"\xff" * 32 + b"\x55" * 64 + b"\x11" * 8 + b"\xaa" * 4 + ONE, (96, 110)),
    "Q6_K": ExactFormat(8, 16, b"\x11" * 128 + b"\xaa" * 64 + b"\x01" * 16 + ONE, (192, 210)),
    "IQ4_NL": ExactFormat(8, 32, ONE + b"\x88" * 16),
    "IQ4_XS": ExactFormat(8, 32, ONE + b"\xaa" * 2 + b"\x11" * 4 + b"\x88" * 128, (0, 8)),
    "MXFP4": ExactFormat(8, 32, b"\x80" + b"\x11" * 16, (0, 1)),
    "NVFP4": ExactFormat(8, 16, b"\x40" * 4 + b"\x11" * 32, (0, 4)),
    "TQ2_0": ExactFormat(2, 32, b"\xaa" * 64 + ONE, (64, 66)),
}


def read_packed(source: FileRange, shape: tuple[int, ...], type_name: str, where: str) -> PackedTensor | None:
    """Codes and scales of a matrix, rows in stored order; None where the format has no exact mapping."""
    exact = EXACT.get(type_name)
    if exact is None or len(shape) < 2:
        return None
    form = block_format(type_name, where)
    rows, columns = source.size // form.bytes * form.block // shape[-1], shape[-1]
    codes = np.empty((rows * columns // form.block, form.block), np.uint8)
    scales = np.empty((len(codes), form.block // exact.group), np.float32)
    unit = np.frombuffer(exact.unit, np.uint8)
    for start, stop, data in chunks(source, form.bytes):
        integers = form.decode(_spliced(data, unit, exact)) + (1 << (exact.bits - 1))
        if integers.min() < 0 or integers.max() >= 1 << exact.bits:
            return None  # no writer makes such blocks, but the format can hold them
        codes[start:stop] = integers
        with np.errstate(all="ignore"):
            scales[start:stop] = form.decode(_spliced(unit, data, exact))[:, :: exact.group]
        require_finite(scales[start:stop], where)
    return PackedTensor(codes.reshape(rows, columns), scales.reshape(rows, -1), None, exact.bits, exact.group)


def _spliced(codes: Bytes, scales: Bytes, exact: ExactFormat) -> Bytes:
    """Blocks with the integers of one and the scales of the other."""
    shape = codes.shape if codes.ndim == 2 else scales.shape
    result = np.broadcast_to(codes, shape).copy()
    part = slice(*exact.scales)
    result[:, part] = np.broadcast_to(scales, shape)[:, part]
    return result
