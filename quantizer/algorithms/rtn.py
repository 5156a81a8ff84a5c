"""Round to nearest: each group's grid spans its extreme weights, each weight takes the closest level."""

from collections.abc import Iterator

import numpy as np

from ..scratch import scratch
from ..storage.matrix import Codes, Floats, QuantizedMatrix
from ..storage.scales import Steps, Stored, round_scales, rows_of
from ..storage.scheme import Scheme

_CHUNK = 1 << 16  # weights per step, for temporaries that stay in cache


def quantize_rows(weight: Floats, scheme: Scheme, stored: Stored, _inputs: object) -> QuantizedMatrix:
    """`round_to_nearest`, which asks for nothing else."""
    return round_to_nearest(weight, scheme, stored)


def round_to_nearest(
    weight: Floats, scheme: Scheme, stored: Stored = np.float32, chunk: int = _CHUNK
) -> QuantizedMatrix:
    """Quantize `weight` `[N, K]`, `chunk` weights at a time; scales are rounded as `stored` before codes are chosen."""
    rows, inputs = weight.shape
    groups = scheme.groups(inputs)
    codes = np.empty((rows, inputs), np.uint8)
    scales = np.empty((rows, groups), np.float32)
    zeros = None if scheme.symmetric else np.empty((rows, groups), np.uint8)
    for part in _row_slices(rows, inputs, chunk):
        grouped = split_groups(weight[part], scheme.group_size)
        scale, zero = _grid(grouped, scheme, rows_of(stored, part))
        codes[part] = encode(grouped, scale, zero, scheme).reshape(len(grouped), -1)[:, :inputs]
        scales[part] = scale
        if zeros is not None:
            zeros[part] = zero
    return QuantizedMatrix(scheme, codes, scales, zeros, stored if isinstance(stored, Steps) else None)


def lost_by_input(weight: Floats, scheme: Scheme) -> Floats:
    """Σ_n (W − Ŵ)²_nk of plain rounding, `[K]`."""
    lost = np.zeros(weight.shape[1], np.float32)
    for part in _row_slices(*weight.shape):
        grouped = split_groups(weight[part], scheme.group_size)
        scale, zero = _grid(grouped, scheme, np.float32)
        values = encode(grouped, scale, zero, scheme)
        values -= zero.astype(np.float32)[..., None]
        values *= scale[..., None]
        np.subtract(grouped, values, out=values)
        lost += np.square(values, out=values).sum(axis=0).reshape(-1)[: weight.shape[1]]
    return lost


def split_groups(weight: Floats, size: int) -> Floats:
    """`[N, K]` → `[N, groups, size]`; a short last group is filled with zeros, which every grid contains."""
    rows, inputs = weight.shape
    groups = -(-inputs // size)
    if groups * size != inputs:
        weight = np.pad(weight, ((0, 0), (0, groups * size - inputs)))
    return weight.reshape(rows, groups, size)


def encode(grouped: Floats, scale: Floats, zero: Codes, scheme: Scheme) -> Floats:
    """Nearest codes of `grouped` `[N, groups, size]` under `scale` and `zero` `[N, groups]`, as floats."""
    codes: Floats = scratch("rtn codes", grouped.shape)
    np.divide(grouped, np.where(scale == 0, np.float32(1), scale)[..., None], out=codes)
    np.rint(codes, out=codes)
    codes += zero.astype(np.float32)[..., None]
    np.clip(codes, 0, scheme.levels, out=codes)
    return codes


def _grid(grouped: Floats, scheme: Scheme, stored: Stored) -> tuple[Floats, Codes]:
    low, high = _extremes(grouped)
    if scheme.symmetric:
        largest: Floats = np.where(-low > high, low, high)
        scale = _stored(largest / np.float32(-scheme.middle), stored)
        return scale, np.full(scale.shape, scheme.middle, np.uint8)
    low, high = np.minimum(low, 0), np.maximum(high, 0)
    scale = _stored((high - low) / np.float32(scheme.levels), stored)
    zero = np.rint(-low / np.where(scale == 0, 1, scale))
    return scale, np.clip(zero, 0, scheme.levels).astype(np.uint8)


def _extremes(grouped: Floats) -> tuple[Floats, Floats]:
    """Least and largest of each group `[N, groups]`, found in a copy with the weights of a group below each other:
    thrice as fast as reductions over so short an axis.
    """
    rows, groups, size = grouped.shape
    columns = scratch("rtn columns", (size, rows * groups + 16))[:, :-16]  # no power of two apart: see `Grid`
    np.copyto(columns, grouped.reshape(-1, size).T)
    return columns.min(axis=0).reshape(rows, groups), columns.max(axis=0).reshape(rows, groups)


def _stored(scale: Floats, stored: Stored) -> Floats:
    return np.ascontiguousarray(round_scales(scale.T, stored).T)


def _row_slices(rows: int, inputs: int, chunk: int = _CHUNK) -> Iterator[slice]:
    step = max(1, chunk // inputs)
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))
