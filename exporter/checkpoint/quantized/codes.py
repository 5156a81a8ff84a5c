"""Integer codes: out of 32-bit words, and into the groups that MatMulNBits stores."""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..checkpoint import CodeArray, FloatArray, PackedTensor
from ..stored import require_finite

ROW_GROUP = 128  # for scales of whole rows: few to store, and fast on every provider


def unpack(words: npt.NDArray[Any], bits: int) -> CodeArray:
    """Codes out of little-endian words along the last axis, low bits first: [..., W] to [..., W * 32 / bits]."""
    data = np.ascontiguousarray(words).view(np.uint8)
    if bits == 8:
        return data
    if bits == 4:
        result = np.empty((*data.shape, 2), np.uint8)
        np.bitwise_and(data, 15, out=result[..., 0])
        np.right_shift(data, 4, out=result[..., 1])
        return result.reshape(*data.shape[:-1], -1)
    single = np.unpackbits(data, axis=-1, bitorder="little")
    single = single.reshape(*single.shape[:-1], -1, bits)
    codes: CodeArray = (single << np.arange(bits, dtype=np.uint8)).sum(-1, dtype=np.uint8)
    return codes


def to_scales(values: npt.NDArray[Any], where: str) -> FloatArray:
    """Scales in float32, C-contiguous; refuses NaN and infinity."""
    scales = np.ascontiguousarray(values, np.float32)
    require_finite(scales, where)
    return scales


def storable(packed: PackedTensor) -> PackedTensor | None:
    """The same matrix as MatMulNBits can hold it, or None: 3-bit codes become 4-bit ones, whole rows become groups."""
    if packed.bits == 3:
        zero = np.full(packed.scales.shape, 4, np.uint8) if packed.zero_points is None else packed.zero_points
        packed = replace(packed, bits=4, zero_points=zero)
    if packed.scales.shape[1] == 1 and not packed.storable:
        count = -(-packed.codes.shape[1] // ROW_GROUP)
        zeros = None if packed.zero_points is None else np.repeat(packed.zero_points, count, axis=1)
        packed = replace(
            packed, scales=np.repeat(packed.scales, count, axis=1), zero_points=zeros, group_size=ROW_GROUP
        )
    return packed if packed.storable else None
