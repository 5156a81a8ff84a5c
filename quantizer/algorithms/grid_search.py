"""Search for the grid of each group that loses least, weighted by how much each input matters.

Candidates shrink the group's range and move its zero point; each is refitted by weighted least squares, which is what
HQQ and llama.cpp's `make_qkx2_quants` do in their own ways. Scales are rounded to their stored type inside the search.
Arrays are `[inputs of the group, N]`: columns of the weight matrix are contiguous.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from ..scratch import scratch
from ..storage.matrix import Floats, QuantizedMatrix
from ..storage.scales import Steps, Stored, round_scales, rows_of
from ..storage.scheme import Scheme
from .grid import Grid, Group
from .hessian import InputStatistics

_SHRINK_4 = tuple(1.02 - 0.07 * p for p in range(7))
_BETWEEN_4 = (1.04, 0.96)
_SHRINK_8 = (1.0, 0.99, 0.98)
_TINY = np.float32(1e-37)  # below, the inverse of a scale is infinite
_TILE = 1 << 17  # weights per step: three arrays of 512 KiB; with smaller ones, threads wait for the interpreter


def quantize_rows(weight: Floats, scheme: Scheme, stored: Stored, inputs: InputStatistics) -> QuantizedMatrix:
    """`search_matrix`, inputs counting as much as is known of them."""
    return search_matrix(weight, inputs.importance, scheme, stored)


def search_group(weights: Floats, importance: Floats, scheme: Scheme, stored: Stored) -> tuple[Floats, Floats]:
    """Scale and zero point `[N]` of one group.

    Args:
        weights: `[size, N]`.
        importance: `[size]`, the damped diagonal of the Hessian.
        scheme: bits and grid.
        stored: how scales are.
    """
    size, rows = weights.shape
    scale, zero = np.empty(rows, np.float32), np.empty(rows, np.float32)
    step = max(1, _TILE // size)
    for start in range(0, rows, step):
        part = slice(start, start + step)
        scale[part], zero[part] = _search(weights[:, part], importance, scheme, rows_of(stored, part))
    return scale, zero


def search_matrix(weight: Floats, importance: Floats, scheme: Scheme, stored: Stored) -> QuantizedMatrix:
    """Round `weight` `[N, K]` to the grids that lose least; `importance` `[K]`. No error is propagated."""
    grid = Grid(scheme, len(weight), weight.shape[1], stored)
    columns = grid.columns(weight)
    for groups in _side_by_side(grid, importance):
        _search_groups(grid, groups, columns, importance)
    return grid.matrix()


def _side_by_side(grid: Grid, importance: Floats) -> Iterator[list[Group]]:
    """Groups to search as one: of a matrix of few rows, one group is too short for its steps to be worth beginning."""
    size, rows = grid.scheme.group_size, grid.codes.shape[1]
    groups, most = list(grid.groups()), max(1, _TILE // (size * rows))
    alike = len(importance) % size == 0 and bool((importance.reshape(-1, size) == importance[:size]).all())
    step = most if alike else 1
    return (groups[first : first + step] for first in range(0, len(groups), step))


def _search_groups(grid: Grid, groups: list[Group], columns: Floats, importance: Floats) -> None:
    """Groups that follow each other, whose inputs are alike in importance."""
    count, rows = len(groups), columns.shape[1]
    inputs = slice(groups[0][1].start, groups[-1][1].stop)
    wide = columns[inputs].reshape(count, -1, rows).swapaxes(0, 1).reshape(-1, count * rows)
    steps = grid.stored
    stored = Steps(np.tile(steps.values, count), steps.signed) if isinstance(steps, Steps) else steps
    scale, zero = search_group(wide, importance[groups[0][1]], grid.scheme, stored)
    codes = round_to_grid(wide, scale, zero, grid.scheme.levels)
    grid.codes[inputs] = codes.reshape(-1, count, rows).swapaxes(0, 1).reshape(-1, rows)
    for (group, _), one_scale, one_zero in zip(groups, scale.reshape(count, -1), zero.reshape(count, -1), strict=True):
        grid.set_group(group, one_scale, one_zero)


def round_to_grid(weights: Floats, scale: Floats, zero: Floats, levels: int) -> Floats:
    """Nearest codes, as floats, of `[…, N]` weights under scales and zero points `[N]`."""
    codes: Floats = np.divide(weights, np.where(scale == 0, np.float32(1), scale), dtype=np.float32)
    np.rint(codes, out=codes)
    codes += zero
    np.maximum(codes, 0, out=codes)  # np.clip takes longer to be called than to clip so few
    np.minimum(codes, levels, out=codes)
    return codes


def _search(w: Floats, importance: Floats, scheme: Scheme, stored: Stored) -> tuple[Floats, Floats]:
    """From coarse to fine: ranges, then ranges between the best and its neighbours, and zero points beside it."""
    best = _Best(w, importance, scheme, stored)
    low, high = np.minimum(w.min(axis=0), 0), np.maximum(w.max(axis=0), 0)
    shrinks, between = (_SHRINK_4, _BETWEEN_4) if scheme.bits == 4 else (_SHRINK_8, ())
    if scheme.symmetric:
        middle = np.full(w.shape[1], scheme.middle, np.float32)
        largest = np.maximum(-low, high) / np.float32(scheme.middle - 0.5)
        for sign in (1, -1):
            best.try_all(largest * np.float32(sign), shrinks, middle)
    else:
        whole = (high - low) / np.float32(scheme.levels)
        zero = np.rint(-low / np.where(whole == 0, np.float32(1), whole))
        best.try_all(whole, shrinks, zero)
        for shift in (-1, 1):
            best.try_all(best.first, (1.0,), np.clip(best.zero + np.float32(shift), 0, scheme.levels))
    best.try_all(best.first, between, best.zero)
    return best.scale, best.zero


class _Best:
    """The best grid so far of each of N groups with weights `[size, N]`; `first` is the scale it was fitted from."""

    def __init__(self, w: Floats, importance: Floats, scheme: Scheme, stored: Stored) -> None:
        self._w, self._importance, self._levels, self._stored = w, importance, np.float32(scheme.levels), stored
        self._symmetric, self._middle = scheme.symmetric, np.float32(scheme.middle)
        self._codes, self._products = scratch("search codes", w.shape), scratch("search products", w.shape)
        self._error = np.full(w.shape[1], np.inf, np.float32)
        self.first, self.scale = np.zeros_like(self._error), np.zeros_like(self._error)
        self.zero = np.full_like(self._error, scheme.middle)

    def try_all(self, first: Floats, factors: Sequence[float], zero: Floats) -> None:
        """Scales `first` `[N]` times each of `factors`, with these zero points."""
        base, zero = first.copy(), zero.copy()
        for factor in factors:
            self._try(base * np.float32(factor), zero)

    def _try(self, first: Floats, zero: Floats) -> None:
        """Fit the scale to the codes that `first` gives. The error is that of these codes, less Σ importance · w²; the
        nearest codes under the fitted scale, which are stored, lose no more.
        """
        w, codes, products, importance = self._w, self._codes, self._products, self._importance
        self._round(first, zero)
        above = importance @ np.multiply(w, codes, out=products)
        below = importance @ np.square(codes, out=products)
        scale = round_scales(above / np.maximum(below, np.float32(1e-30)), self._stored)
        error = scale * (scale * below - 2 * above)
        better = error < self._error
        for kept, new in ((self._error, error), (self.first, first), (self.scale, scale), (self.zero, zero)):
            np.copyto(kept, new, where=better)

    def _round(self, scale: Floats, zero: Floats) -> None:
        """Nearest codes, less the zero point: clipping them to −zero … levels − zero saves a pass."""
        codes = self._codes
        np.multiply(self._w, 1 / np.where(np.abs(scale) < _TINY, np.float32(1), scale), out=codes)
        np.rint(codes, out=codes)
        if self._symmetric:
            np.clip(codes, -self._middle, self._levels - self._middle, out=codes)
            return
        np.maximum(codes, -zero, out=codes)
        np.minimum(codes, self._levels - zero, out=codes)
