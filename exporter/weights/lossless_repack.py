"""Codes of a quantized checkpoint, stored as they are: the same integers and scales in the terms of MatMulNBits.

1. Several tensors stacked into one matrix, such as q, k and v, get the widest of their codes and the smallest of their
   groups. 2- and 3-bit codes become 4-bit ones. Neither changes a value.
2. Rows that are put elsewhere take their codes along; rows that the graph adds are zeros.
3. What would change values, or mix inputs of different groups, is a reason not to.
"""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from quantizer.recipe import GROUP_SIZES, Scheme
from quantizer.storage.matrix import QuantizedMatrix

from .read import target_rows

if TYPE_CHECKING:
    from quantizer.graph.quantizable import QuantizableWeight

    from ..checkpoint import PackedTensor
    from .plan import Weight

_SPLIT = 128  # groups wider than MatMulNBits takes are stored as several of this size


def repacked_matrix(weight: "Weight", site: "QuantizableWeight") -> QuantizedMatrix | str:
    """The stored codes as the matrix `[N, K]` of the graph, or the reason why it must be computed from floats."""
    plan = weight.plan
    if plan.computed is not None or plan.columns is not None or plan.scale != 1 or plan.offset or weight.each_head:
        return "its values are rearranged or scaled on the way"
    if weight.stored != "out_in":
        return "it is stored transposed"
    parts: list[PackedTensor] = []
    for source in weight.sources:
        packed = source.packed()
        if packed is None or packed.codes.shape != source.shape:
            return f"{source.dtype} has no exact form in MatMulNBits"
        parts.append(packed)
    matrix = _placed(_stacked(parts), target_rows(weight), site.rows)
    if site.role == "embedding" and not matrix.scheme.symmetric:
        return "an embedding must have symmetric codes"
    return matrix


def scale_kind(matrix: QuantizedMatrix, activations: npt.DTypeLike) -> npt.DTypeLike:
    """The type that its scales are stored in: half precision where that is exact, or the activations'."""
    if np.dtype(activations) != np.float32:
        return activations
    with np.errstate(over="ignore"):
        half = matrix.scales.astype(np.float16).astype(np.float32)
    return np.float16 if np.array_equal(half, matrix.scales) else np.float32


def with_scales_as(matrix: QuantizedMatrix, kind: npt.DTypeLike) -> QuantizedMatrix:
    """Scales rounded to the type that they are stored in."""
    return QuantizedMatrix(
        matrix.scheme, matrix.codes, matrix.scales.astype(kind).astype(np.float32), matrix.zero_points
    )


def _stacked(parts: "list[PackedTensor]") -> QuantizedMatrix:
    """Case 1."""
    bits = 8 if max(part.bits for part in parts) > 4 else 4
    group = min(part.group_size for part in parts)
    group = group if group in GROUP_SIZES else _SPLIT
    inputs = parts[0].codes.shape[1]
    codes = np.concatenate([part.codes + _shift(part, bits) for part in parts])
    scales = np.concatenate([_regrouped(part.scales, part.group_size, group, inputs) for part in parts])
    zeros = np.concatenate([_regrouped(_zero_points(part, bits), part.group_size, group, inputs) for part in parts])
    symmetric = bool((zeros == 1 << (bits - 1)).all())
    return QuantizedMatrix(Scheme(bits, group, symmetric), codes, scales, None if symmetric else zeros)


def _shift(part: "PackedTensor", bits: int) -> np.uint8:
    """Added to codes and zero points alike, so that the middle stays the middle."""
    return np.uint8((1 << (bits - 1)) - (1 << (part.bits - 1)))


def _zero_points(part: "PackedTensor", bits: int) -> npt.NDArray[np.uint8]:
    if part.zero_points is None:
        return np.full(part.scales.shape, 1 << (bits - 1), np.uint8)
    return part.zero_points + _shift(part, bits)


def _regrouped(values: npt.NDArray[np.generic], old: int, new: int, inputs: int) -> npt.NDArray[np.generic]:
    """`[N, groups of old]` → `[N, groups of new]`: each value for all groups that lie in its own."""
    return values if old == new else values[:, np.arange(-(-inputs // new)) * new // old]


def _placed(matrix: QuantizedMatrix, rows: npt.NDArray[np.int64], count: int) -> QuantizedMatrix:
    """Case 2: row j of the stack becomes row `rows[j]` of `count`."""
    if count == len(rows) and np.array_equal(rows, np.arange(count)):
        return matrix
    zero = matrix.scheme.middle
    codes = np.full((count, matrix.codes.shape[1]), zero, np.uint8)
    scales = np.zeros((count, matrix.scales.shape[1]), np.float32)
    codes[rows], scales[rows] = matrix.codes, matrix.scales
    if matrix.zero_points is None:
        return QuantizedMatrix(matrix.scheme, codes, scales, None)
    zeros = np.full(scales.shape, zero, np.uint8)
    zeros[rows] = matrix.zero_points
    return QuantizedMatrix(matrix.scheme, codes, scales, zeros)
