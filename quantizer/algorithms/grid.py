"""A matrix while it is quantized group by group: inputs first, so that the weights of one input are contiguous."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..scratch import scratch
from ..storage.matrix import Floats, QuantizedMatrix
from ..storage.scales import Steps, Stored
from ..storage.scheme import Scheme

_OUTER = 512  # inputs of a product over all others: fewer, and packing those for it takes a third of the time
_BLOCK = 128  # inputs, or a whole group, of a product inside these
_MULTIPLE = 64  # of rows: so filled up, OpenBLAS sums a row in the same order whichever rows are beside it


Group = tuple[int, slice]  # its number, and its inputs


@dataclass(frozen=True)
class Block:
    """A few groups; `inside` is where their inputs lie in the outer block."""

    inside: slice
    groups: Sequence[Group]


class Grid:
    """Codes `[K, N']`, scales and zero points `[groups, N']` of a matrix `[N, K]`; N' is N, filled up with zeros.

    Args:
        scheme: bits, group size and grid.
        rows: N.
        inputs: K.
        stored: how scales are; `stored` of the grid knows the rows that fill up, too.
    """

    def __init__(self, scheme: Scheme, rows: int, inputs: int, stored: Stored) -> None:
        groups, self._rows = scheme.groups(inputs), rows
        missing = -rows % _MULTIPLE
        self.scheme = scheme
        self.stored = Steps(np.pad(stored.values, (0, missing)), stored.signed) if isinstance(stored, Steps) else stored
        self.codes = np.empty((inputs, rows + missing), np.uint8)
        self.scales = np.zeros((groups, rows + missing), np.float32)
        self.zeros = np.full(self.scales.shape, scheme.middle, np.float32)

    @classmethod
    def of(cls, matrix: QuantizedMatrix, stored: Stored) -> "Grid":
        """The grid of a matrix that is quantized."""
        rows, inputs = matrix.codes.shape
        grid = cls(matrix.scheme, rows, inputs, stored)
        grid.codes[:, rows:] = matrix.scheme.middle
        grid.codes[:, :rows] = matrix.codes.T
        grid.scales[:, :rows] = matrix.scales.T
        if matrix.zero_points is not None:
            grid.zeros[:, :rows] = matrix.zero_points.T
        return grid

    def columns(self, weight: Floats) -> Floats:
        """`weight` `[N, K]` as `[K, N']`."""
        columns = np.zeros(self.codes.shape, np.float32)
        columns[:, : self._rows] = _spaced(weight).T
        return columns

    def groups(self) -> Iterator[Group]:
        """Each group's number and inputs; the last may be short."""
        inputs, size = len(self.codes), self.scheme.group_size
        return ((start // size, slice(start, min(start + size, inputs))) for start in range(0, inputs, size))

    def blocks(self) -> Iterator[tuple[slice, Sequence["Block"]]]:
        """Outer blocks of inputs, and the blocks in each: whole groups."""
        groups = list(self.groups())
        for outer in _by(groups, max(1, _OUTER // self.scheme.group_size)):
            whole = _span(outer)
            inner = _by(outer, max(1, _BLOCK // self.scheme.group_size))
            yield whole, [Block(within(_span(some), whole), some) for some in inner]

    def set_group(self, group: int, scale: Floats, zero: Floats) -> None:
        """Store the scales and zero points `[N']` of one group."""
        self.scales[group], self.zeros[group] = scale, zero

    def steps(self, group: int, part: slice) -> Floats:
        """Codes less their zero point, of one group: `[size, N']`."""
        steps: Floats = self.codes[part] - self.zeros[group]
        return steps

    def matrix(self) -> QuantizedMatrix:
        """The result, `[N, K]`."""
        zeros = None if self.scheme.symmetric else self._transposed(self.zeros.astype(np.uint8))
        steps = self.stored if isinstance(self.stored, Steps) else None
        kept = None if steps is None else Steps(steps.values[: self._rows], steps.signed)
        return QuantizedMatrix(self.scheme, self._transposed(self.codes), self._transposed(self.scales), zeros, kept)

    def _transposed(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.array(_spaced(array[:, : self._rows]).T, order="C")  # never a view of scratch


def within(part: slice, outer: slice) -> slice:
    """Where a part lies in what it is a part of."""
    return slice(part.start - outer.start, part.stop - outer.start)


def _by(groups: Sequence[Group], count: int) -> Iterator[Sequence[Group]]:
    return (groups[first : first + count] for first in range(0, len(groups), count))


def _span(groups: Sequence[Group]) -> slice:
    return slice(groups[0][1].start, groups[-1][1].stop)


def _spaced(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A copy in scratch whose rows are no power of two apart: in such steps each value would displace the one before
    it from the cache, and the transposed copy takes nine times as long."""
    rows, columns = array.shape
    copy = scratch("spaced", (rows, columns + 64 // array.itemsize), array.dtype)[:, :columns]
    np.copyto(copy, array)
    return copy
