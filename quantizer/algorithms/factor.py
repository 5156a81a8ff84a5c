"""Triangular factors of a Hessian, in double precision, on all cores.

The same bits for any number of threads: the parts are of a fixed size, and one thread computes each.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

from ..parallel import one_blas_thread, parallel_map

_DAMPING = 0.01  # as in the GPTQ paper; 0.001 to 0.05 made no difference on SmolLM2-135M
_BLOCK = 512  # columns of a factor computed at a time
_STRIP = 512  # rows of them that a thread computes
Doubles = npt.NDArray[np.float64]
Floats = npt.NDArray[np.float32]


def damping(diagonal: npt.NDArray[np.floating]) -> float:
    """What is added to the diagonal of H: a share of its mean, or 1 where no input was ever seen."""
    mean = float(diagonal.mean(dtype=np.float64))
    return _DAMPING * mean if mean > 0 else 1.0


def damp(hessian: Floats) -> Doubles:
    """H plus `damping` on its diagonal."""
    damped = hessian.astype(np.float64, order="C")
    damped.flat[:: len(damped) + 1] += damping(hessian.diagonal())
    return damped


def upper_factor(matrix: Doubles) -> Doubles:
    """The upper triangular R with `matrix` = R Rᵀ, which must be positive definite.

    Flipping both axes turns a lower Cholesky factor into this one.
    """
    return _factored(np.ascontiguousarray(matrix[::-1, ::-1]))


def damped_factor(hessian: Floats) -> Doubles:
    """`upper_factor(damp(hessian))`, with one array of its size less in memory."""
    lower = np.empty(hessian.shape, np.float64)
    np.copyto(lower, hessian[::-1, ::-1])
    lower.flat[:: len(lower) + 1] += damping(hessian.diagonal())
    return _factored(lower)


def _factored(lower: Doubles) -> Doubles:
    """The factor of a matrix with both axes flipped, in its place."""
    with one_blas_thread():
        for start in range(0, len(lower), _BLOCK):
            _factor_columns(lower, start, min(start + _BLOCK, len(lower)))
    return lower[::-1, ::-1]


def inverse_factor(matrix: Doubles) -> Doubles:
    """The upper triangular U with UᵀU = `matrix`⁻¹, which is R⁻¹."""
    return _invert_upper(np.ascontiguousarray(upper_factor(matrix)))


def _factor_columns(lower: Doubles, start: int, stop: int) -> None:
    """Columns `start … stop` of the factor, in place, once those before them are done (left-looking Cholesky)."""
    columns = slice(start, stop)
    if start:
        before = lower[columns, :start].T
        _on_strips(partial(_subtract, lower, before, columns), start, len(lower))
    corner = np.linalg.cholesky(lower[columns, columns]).astype(np.float64, copy=False)
    lower[columns, columns] = corner
    lower[columns, stop:] = 0
    _on_strips(partial(_divide, lower, _invert_upper(corner.T), columns), stop, len(lower))


def _subtract(lower: Doubles, before: Doubles, columns: slice, rows: slice) -> None:
    lower[rows, columns] -= lower[rows, : columns.start] @ before


def _divide(lower: Doubles, inverse: Doubles, columns: slice, rows: slice) -> None:
    lower[rows, columns] = lower[rows, columns] @ inverse


def _on_strips(work: Callable[[slice], None], start: int, stop: int) -> None:
    """Strips of rows, in several threads."""
    strips = (slice(first, min(first + _STRIP, stop)) for first in range(start, stop, _STRIP))
    for _ in parallel_map(partial(work, strip) for strip in strips):
        pass


def _invert_upper(matrix: Doubles) -> Doubles:
    """Inverse of an upper triangular matrix, by halves: nearly all of it is matrix products."""
    size = len(matrix)
    if size <= 64:
        return np.triu(np.linalg.inv(matrix))
    half = size // 2
    inverse = np.zeros_like(matrix)
    inverse[:half, :half] = _invert_upper(matrix[:half, :half])
    inverse[half:, half:] = _invert_upper(matrix[half:, half:])
    inverse[:half, half:] = -inverse[:half, :half] @ matrix[:half, half:] @ inverse[half:, half:]
    return inverse
