"""Codes of a quantized checkpoint, stored as they are: the same integers and scales in the terms of MatMulNBits.

1. Several tensors stacked into one matrix, such as q, k and v, get the widest of their codes and the smallest of their
   groups. 2- and 3-bit codes become 4-bit ones. Neither changes a value.
2. Rows that are put elsewhere take their codes along; rows that the graph adds are zeros.
3. A factor of the whole matrix goes into its scales.
4. What would change codes, or mix inputs of different groups, is a reason not to.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from quantizer.storage.matrix import QuantizedMatrix
from quantizer.storage.scheme import GROUP_SIZES, Scheme
from runtime.errors import CheckpointError

from .plan import as_out_in
from .read import target_rows
from .stacks import slices

if TYPE_CHECKING:
    from quantizer.graph.quantizable import QuantizableWeight

    from ..checkpoint import PackedTensor
    from .plan import Weight

_SPLIT = 128  # groups wider than MatMulNBits takes are stored as several of this size


def repacked_matrix(weight: "Weight", site: "QuantizableWeight", scheme: Scheme | None = None) -> QuantizedMatrix | str:
    """The stored codes as the matrix `[N, K]` of the graph, or the reason why it must be computed from floats.

    Args:
        weight: one matrix.
        site: that it is, or that it is one of a stack of.
        scheme: at least as wide as the codes, with groups at least as fine; None for the nearest.
    """
    parts = _codes(weight)
    if isinstance(parts, str):
        return parts
    matrix = _placed(_stacked(parts, scheme or _nearest(parts)), target_rows(weight), site.rows)
    if site.role == "embedding" and not matrix.scheme.symmetric:
        return "an embedding must have symmetric codes"
    return matrix


def stack_scheme(weight: "Weight", site: "QuantizableWeight") -> Scheme | str:
    """How the codes of all matrices of a stack can be kept, by its first one, or the reason why they cannot."""
    parts = _codes(next(slices(weight)))
    if isinstance(parts, str):
        return parts
    near = _nearest(parts)
    groups = [size for size in GROUP_SIZES if size <= min(near.group_size, _SPLIT) and site.divisor % size == 0]
    if not groups:
        return f"its groups of {near.group_size} do not end where those of experts must"
    return Scheme(near.bits, groups[-1], all(part.zero_points is None for part in parts))


def _codes(weight: "Weight") -> "list[PackedTensor] | str":
    plan = weight.plan
    if plan.computed is not None or plan.columns is not None or plan.offset or weight.each_head:
        return "its values are rearranged or shifted on the way"
    parts: list[PackedTensor] = []
    for source in weight.sources:
        packed = source.packed()
        if packed is not None and packed.transposed != (weight.stored == "in_out"):
            return "it is stored transposed"
        if packed is None or packed.codes.shape != as_out_in(weight, source.shape):
            return f"{source.dtype} has no exact form in MatMulNBits"
        parts.append(packed if plan.scale == 1 else replace(packed, scales=packed.scales * np.float32(plan.scale)))
    return parts


def repacked_in_stack(
    name: str, number: int, part: "Weight", site: "QuantizableWeight", scheme: Scheme
) -> QuantizedMatrix:
    """The stored codes of one matrix of the stack called `name`.

    Raises:
        CheckpointError: it is stored otherwise than the first.
    """
    matrix = repacked_matrix(part, site, scheme)
    if isinstance(matrix, str):
        raise CheckpointError(
            f"{name}: matrix {number} cannot be kept as the first one is: {matrix}. Pass --requantize."
        )
    return matrix


def common_scheme(schemes: "Sequence[Scheme | str]") -> Scheme | str:
    """The one scheme that holds the codes of all stacks of a module, or the reason why there is none."""
    held = [scheme for scheme in schemes if isinstance(scheme, Scheme)]
    if len(held) < len(schemes):
        return next(scheme for scheme in schemes if isinstance(scheme, str))
    return Scheme(
        max(scheme.bits for scheme in held),
        min(scheme.group_size for scheme in held),
        all(scheme.symmetric for scheme in held),
    )


def scale_kind(matrix: QuantizedMatrix, activations: npt.DTypeLike) -> npt.DTypeLike:
    """The type that its scales are stored in: half precision where that is exact, or the activations'."""
    if np.dtype(activations) != np.float32:
        return activations
    with np.errstate(over="ignore"):
        exact = np.array_equal(matrix.scales.astype(np.float16).astype(np.float32), matrix.scales)
    return np.float16 if exact else np.float32


def with_scales_as(matrix: QuantizedMatrix, kind: npt.DTypeLike) -> QuantizedMatrix:
    """Scales rounded to the type that they are stored in."""
    return QuantizedMatrix(
        matrix.scheme, matrix.codes, matrix.scales.astype(kind).astype(np.float32), matrix.zero_points
    )


def _nearest(parts: "list[PackedTensor]") -> Scheme:
    """The narrowest scheme that holds all parts."""
    bits = 8 if max(part.bits for part in parts) > 4 else 4
    group = min(part.group_size for part in parts)
    group = group if group in GROUP_SIZES else _SPLIT
    middle = 1 << (bits - 1)
    return Scheme(bits, group, all(bool((_zero_points(part, bits) == middle).all()) for part in parts))


def _stacked(parts: "list[PackedTensor]", scheme: Scheme) -> QuantizedMatrix:
    """Case 1."""
    bits, group, inputs = scheme.bits, scheme.group_size, parts[0].codes.shape[1]
    shifted = [part.codes + _shift(part, bits) if part.bits != bits else part.codes for part in parts]
    codes = shifted[0] if len(parts) == 1 else np.concatenate(shifted)
    scales = np.concatenate([_regrouped(part.scales, part.group_size, group, inputs) for part in parts])
    if scheme.symmetric:
        return QuantizedMatrix(scheme, codes, scales, None)
    zeros = np.concatenate([_regrouped(_zero_points(part, bits), part.group_size, group, inputs) for part in parts])
    return QuantizedMatrix(scheme, codes, scales, zeros)


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
