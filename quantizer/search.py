"""Search for the grid of each group that loses least, weighted by how much each input matters.

Candidates shrink the group's range and move its zero point; each is refitted by weighted least squares, which is what
HQQ and llama.cpp's `make_qkx2_quants` do in their own ways. Scales are rounded to their stored type inside the search.
Arrays are `[inputs of the group, N]`: columns of the weight matrix are contiguous.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from .matrix import Codes, Floats, QuantizedMatrix
from .scheme import Scheme

_SHRINK_4 = tuple(1.02 - 0.035 * p for p in range(14))
_SHRINK_8 = (1.0, 0.99, 0.98)
_SHIFTS = (0, -1, 1)
_TILE = 1 << 17  # weights per step: temporaries stay in cache


def search_group(weights: Floats, importance: Floats, scheme: Scheme, stored: npt.DTypeLike) -> tuple[Floats, Floats]:
    """Scale and zero point `[N]` of one group.

    Args:
        weights: `[size, N]`.
        importance: `[size]`, the damped diagonal of the Gram matrix.
        scheme: bits and grid.
        stored: the type that scales are stored in.
    """
    size, rows = weights.shape
    scale, zero = np.empty(rows, np.float32), np.empty(rows, np.float32)
    step = max(1, _TILE // size)
    for start in range(0, rows, step):
        part = slice(start, start + step)
        scale[part], zero[part] = _search(weights[:, part], importance, scheme, stored)
    return scale, zero


def search_matrix(weight: Floats, importance: Floats, scheme: Scheme, stored: npt.DTypeLike) -> QuantizedMatrix:
    """Round `weight` `[N, K]` to the grids that lose least; `importance` `[K]`. No error is propagated."""
    columns = np.ascontiguousarray(weight.T)
    inputs, rows = columns.shape
    grid = Grid(scheme, rows, inputs)
    for group, part in grid.groups():
        scale, zero = search_group(columns[part], importance[part], scheme, stored)
        grid.set_group(group, scale, zero)
        grid.codes[part] = round_to_grid(columns[part], scale, zero, scheme.levels)
    return grid.matrix()


def round_to_grid(weights: Floats, scale: Floats, zero: Floats, levels: int) -> Floats:
    """Nearest codes, as floats, of `[…, N]` weights under scales and zero points `[N]`."""
    codes: Floats = np.divide(weights, np.where(scale == 0, np.float32(1), scale), dtype=np.float32)
    np.rint(codes, out=codes)
    codes += zero
    np.clip(codes, 0, levels, out=codes)
    return codes


class Grid:
    """Codes `[K, N]`, scales and zero points `[groups, N]` of a matrix that is being quantized group by group."""

    def __init__(self, scheme: Scheme, rows: int, inputs: int) -> None:
        groups = scheme.groups(inputs)
        self.scheme = scheme
        self.codes = np.empty((inputs, rows), np.uint8)
        self.scales = np.empty((groups, rows), np.float32)
        self.zeros = np.empty((groups, rows), np.float32)

    def groups(self) -> Iterator[tuple[int, slice]]:
        """Each group's number and inputs; the last may be short."""
        inputs, size = len(self.codes), self.scheme.group_size
        return ((start // size, slice(start, min(start + size, inputs))) for start in range(0, inputs, size))

    def set_group(self, group: int, scale: Floats, zero: Floats) -> None:
        """Store the grid of one group."""
        self.scales[group], self.zeros[group] = scale, zero

    def matrix(self) -> QuantizedMatrix:
        """The result, `[N, K]`."""
        zeros = None if self.scheme.symmetric else _turned(self.zeros.astype(np.uint8))
        return QuantizedMatrix(self.scheme, _turned(self.codes), np.ascontiguousarray(self.scales.T), zeros)


def _search(w: Floats, importance: Floats, scheme: Scheme, stored: npt.DTypeLike) -> tuple[Floats, Floats]:
    best_error = np.full(w.shape[1], np.inf, np.float32)
    best_scale, best_zero = np.zeros_like(best_error), np.full_like(best_error, scheme.middle)
    for first, zero in _candidates(w, scheme):
        codes = round_to_grid(w, first, zero, scheme.levels) - zero
        fitted = importance @ (w * codes) / np.maximum(importance @ np.square(codes), np.float32(1e-30))
        scale = fitted.astype(stored).astype(np.float32)
        codes = round_to_grid(w, scale, zero, scheme.levels) - zero
        codes *= scale
        np.subtract(w, codes, out=codes)
        error = importance @ np.square(codes, out=codes)
        better = error < best_error
        np.copyto(best_error, error, where=better)
        np.copyto(best_scale, scale, where=better)
        np.copyto(best_zero, zero, where=better)
    return best_scale, best_zero


def _candidates(w: Floats, scheme: Scheme) -> Iterator[tuple[Floats, Floats]]:
    """First guesses of scale and zero point `[N]`."""
    shrinks = _SHRINK_4 if scheme.bits == 4 else _SHRINK_8
    low, high = np.minimum(w.min(axis=0), 0), np.maximum(w.max(axis=0), 0)
    if scheme.symmetric:
        middle = np.full(w.shape[1], scheme.middle, np.float32)
        largest = np.maximum(-low, high) / np.float32(scheme.middle - 0.5)
        yield from ((largest * np.float32(sign * shrink), middle) for shrink in shrinks for sign in (1, -1))
        return
    whole = (high - low) / np.float32(scheme.levels)
    zero = np.rint(-low / np.where(whole == 0, np.float32(1), whole))
    for shrink in shrinks:
        for shift in _SHIFTS:
            yield whole * np.float32(shrink), np.clip(zero + np.float32(shift), 0, scheme.levels)


def _turned(array: Codes) -> Codes:
    return np.ascontiguousarray(array.T)
