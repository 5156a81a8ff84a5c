"""A quantized matrix in memory: codes, scales and zero points, before they are packed into bytes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .scales import Steps
from .scheme import Scheme

Codes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
_VALUES = 1 << 20  # that are decoded at a time
_TILE = 1 << 16  # the same, where they need not be kept: they stay in the cache
Index = npt.NDArray[np.int64]
NO_RESIDUALS: Index = np.zeros(0, np.int64)


@dataclass(frozen=True)
class QuantizedMatrix:
    """`(codes - zero_points) * scales`, groups running along the inputs.

    Attributes:
        scheme: bits, group size and grid.
        codes: `[N, K]`, each `0 … scheme.levels`.
        scales: `[N, groups]`, already rounded to the type they are stored in.
        zero_points: `[N, groups]`, or None where every zero point is `scheme.middle`.
        steps: that scales are multiples of, where they are stored so.
    """

    scheme: Scheme
    codes: Codes
    scales: Floats
    zero_points: Codes | None
    steps: Steps | None = None

    def __post_init__(self) -> None:
        rows, inputs = self.codes.shape
        assert self.scales.shape == (rows, self.scheme.groups(inputs))
        assert (self.zero_points is None) == self.scheme.symmetric
        assert self.zero_points is None or self.zero_points.shape == self.scales.shape

    def rows(self, part: slice) -> "QuantizedMatrix":
        """Some rows of the matrix, sharing its memory."""
        zero_points = None if self.zero_points is None else self.zero_points[part]
        steps = None if self.steps is None else self.steps.rows(part)
        return QuantizedMatrix(self.scheme, self.codes[part], self.scales[part], zero_points, steps)

    def dequantize(self, out: Floats | None = None) -> Floats:
        """The weights that these codes stand for, `[N, K]`, in `out` if it is given."""
        rows, inputs = self.codes.shape
        whole, step = inputs // self.scheme.group_size * self.scheme.group_size, max(1, _VALUES // max(1, inputs))
        values = np.empty((rows, inputs), np.float32) if out is None else out
        for start in range(0, rows, step):
            part = slice(start, start + step)
            some = self if step >= rows else self.rows(part)
            some._decode(values[part], slice(0, whole), self.scheme.group_size)
            some._decode(values[part], slice(whole, inputs), inputs - whole)
        return values

    def squares_lost(self, weight: Floats) -> float:
        """‖W − Ŵ‖², some rows at a time."""
        lost, step = 0.0, max(1, _TILE // weight.shape[1])
        for start in range(0, len(weight), step):
            part = slice(start, start + step)
            values = self.rows(part).dequantize()
            np.subtract(weight[part], values, out=values)
            lost += float(np.vdot(values, values))
        return lost

    def _decode(self, values: Floats, part: slice, size: int) -> None:
        """Inputs `part`, in groups of `size`."""
        if part.start == part.stop:
            return
        groups = slice(part.start // self.scheme.group_size, -(-part.stop // self.scheme.group_size))
        shape = (len(values), groups.stop - groups.start, size)
        middle = np.float32(self.scheme.middle)
        zero = middle if self.zero_points is None else self.zero_points[:, groups, None].astype(np.float32)
        grouped = np.subtract(self.codes[:, part].reshape(shape), zero, dtype=np.float32)
        np.multiply(grouped, self.scales[:, groups, None], out=grouped)
        values[:, part] = grouped.reshape(len(values), -1)


def join(matrices: Sequence[QuantizedMatrix], axis: int = 0) -> QuantizedMatrix:
    """Matrices of one scheme below each other, or (`axis` 1) side by side, where none has steps, in groups that end."""
    first = matrices[0]
    codes, scales = (np.concatenate([getattr(m, part) for m in matrices], axis=axis) for part in ("codes", "scales"))
    zeros = [m.zero_points for m in matrices if m.zero_points is not None]
    steps = [m.steps for m in matrices if m.steps is not None]
    return QuantizedMatrix(
        first.scheme,
        codes,
        scales,
        np.concatenate(zeros, axis=axis) if zeros else None,
        Steps(np.concatenate([s.values for s in steps]), steps[0].signed) if steps else None,
    )


def effective(matrix: QuantizedMatrix, index: Index) -> Floats:
    """The weights `[N, inputs]` that an extended matrix multiplies by."""
    rows, wide = matrix.codes.shape
    inputs, step = wide - len(index), max(1, _VALUES // wide)
    weights = np.empty((rows, inputs), np.float32)
    for start in range(0, rows, step):
        part = slice(start, start + step)
        values = matrix.rows(part).dequantize()
        weights[part] = values[:, :inputs]
        np.add.at(weights[part].T, index, values[:, inputs:].T)
    return weights
