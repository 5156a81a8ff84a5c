"""Triangular factors of a Hessian, on all cores.

The same bits for any number of threads: the parts are of a fixed size, and one thread computes each.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ..parallel import one_blas_thread, parallel_map

_DAMPING = 0.01  # as in the GPTQ paper; 0.001 to 0.05 made no difference on SmolLM2-135M
_BLOCK = 256  # columns of a factor computed at a time
_STRIP = 512  # rows of them that a thread computes
_TINY = 1e-300
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


def damped_factor(hessian: Floats) -> Floats:
    """The upper triangular R with R Rᵀ = `damp(hessian)`, in single precision where that suffices.

    Flipping both axes turns a lower Cholesky factor into this one.

    Scaled to a diagonal of ones, the products' rounding errors are about a ten-thousandth of the damping, for quiet
    and loud inputs alike (Demmel, 1989, LAPACK Working Note 14). Where a pivot is lost all the same, doubles are used.
    """
    scale = np.sqrt(np.maximum(hessian.diagonal().astype(np.float64) + damping(hessian.diagonal()), _TINY))
    try:
        return _scaled_factor(hessian, scale, np.float32)
    except np.linalg.LinAlgError:
        return _scaled_factor(hessian, scale, np.float64)


def _scaled_factor(hessian: Floats, scale: Doubles, kind: type[np.floating]) -> Floats:
    """R = S R', where R' R'ᵀ = S⁻¹ (damped H) S⁻¹, computed in `kind`; S the diagonal matrix of `scale`."""
    lower = np.empty(hessian.shape, kind)
    inverse = (1 / scale[::-1]).astype(kind)
    with one_blas_thread():
        _on_strips(partial(_scale_into, lower, hessian[::-1, ::-1], inverse), 0, len(lower))
        lower.flat[:: len(lower) + 1] = 1
        upper = _factored(lower)
        factor = np.empty(hessian.shape, np.float32) if kind is np.float64 else upper
        _on_strips(partial(_scale_rows, factor, upper, scale.astype(kind)), 0, len(lower))
    return np.ascontiguousarray(factor)


def _scale_into(target: npt.NDArray[Any], source: Floats, scale: npt.NDArray[Any], rows: slice) -> None:
    np.multiply(source[rows], scale, out=target[rows], casting="same_kind")
    target[rows] *= scale[rows, None]


def _scale_rows(target: npt.NDArray[Any], source: npt.NDArray[Any], scale: npt.NDArray[Any], rows: slice) -> None:
    np.multiply(source[rows], scale[rows, None], out=target[rows], casting="same_kind")


def _factored(lower: npt.NDArray[Any]) -> Any:
    """The factor of a matrix with both axes flipped, in its place."""
    with one_blas_thread():
        for start in range(0, len(lower), _BLOCK):
            _factor_columns(lower, start, min(start + _BLOCK, len(lower)))
    return lower[::-1, ::-1]


def conditional_variances(factor: Floats) -> Floats:
    """1 / diag(H⁻¹) `[K]`, H = R Rᵀ: of each input, what all others do not tell.

    Columns of R⁻¹ from the left, a strip at a time: all but its own triangle is a matrix product.
    """
    inverse, variances = np.zeros_like(factor), np.empty(len(factor), np.float32)
    starts = range(0, len(factor), _BLOCK)
    with one_blas_thread():
        corners = [_invert_upper(factor[start : start + _BLOCK, start : start + _BLOCK].astype(np.float64))
                   for start in starts]  # fmt: skip
        for start, corner in zip(starts, corners, strict=True):
            columns = slice(start, start + len(corner))
            inverse[columns, columns] = corner
            above = factor[:start, columns] @ corner.astype(factor.dtype)
            _on_strips(partial(_minus_product, inverse, above, columns), 0, start)
            variances[columns] = 1 / np.square(inverse[: columns.stop, columns], dtype=np.float64).sum(axis=0)
    return variances


def _minus_product(inverse: Floats, above: Floats, columns: slice, rows: slice) -> None:
    """Rows of −R₁⁻¹ R₁₂ R₂₂⁻¹; what lies left of them is zero."""
    inverse[rows, columns] = -inverse[rows, rows.start : len(above)] @ above[rows.start :]


def _factor_columns(lower: npt.NDArray[Any], start: int, stop: int) -> None:
    """Columns `start … stop` of the factor, in place, once those before them are done (left-looking Cholesky)."""
    columns = slice(start, stop)
    if start:
        before = lower[columns, :start].T
        _on_strips(partial(_subtract, lower, before, columns), start, len(lower))
    corner = np.linalg.cholesky(lower[columns, columns].astype(np.float64))
    lower[columns, columns] = corner
    lower[columns, stop:] = 0
    _on_strips(partial(_divide, lower, _invert_upper(corner.T).astype(lower.dtype), columns), stop, len(lower))


def _subtract(lower: npt.NDArray[Any], before: npt.NDArray[Any], columns: slice, rows: slice) -> None:
    lower[rows, columns] -= lower[rows, : columns.start] @ before


def _divide(lower: npt.NDArray[Any], inverse: npt.NDArray[Any], columns: slice, rows: slice) -> None:
    lower[rows, columns] = lower[rows, columns] @ inverse


def _on_strips(work: Callable[[slice], None], start: int, stop: int) -> None:
    """Strips of rows, in several threads."""
    strips = (slice(first, min(first + _STRIP, stop)) for first in range(start, stop, _STRIP))
    for _ in parallel_map(partial(work, strip) for strip in strips):
        pass


def _invert_upper(matrix: Doubles) -> Doubles:
    """Inverse of an upper triangular matrix, by halves, so that nearly all work is matrix products."""
    size = len(matrix)
    if size <= 64:
        return np.triu(np.linalg.inv(matrix))
    half = size // 2
    inverse = np.zeros_like(matrix)
    inverse[:half, :half] = _invert_upper(matrix[:half, :half])
    inverse[half:, half:] = _invert_upper(matrix[half:, half:])
    inverse[:half, half:] = -inverse[:half, :half] @ matrix[:half, half:] @ inverse[half:, half:]
    return inverse
