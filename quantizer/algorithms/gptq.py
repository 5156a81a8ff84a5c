"""GPTQ: round the inputs one after the other, and let those not yet rounded make up for each error.

Frantar et al., 2022, arXiv:2210.17323. The order is the natural one: act-order comes from permutations that the
neighbouring weights absorb (`permute.py`). Each group's grid is searched when its first input is reached, on the
weights as they are by then, and it is the grid that is stored.
"""

import numpy as np
import numpy.typing as npt

from ..recipe import Scheme
from ..storage.matrix import Floats, QuantizedMatrix
from ..storage.scales import Stored
from .grid_search import Grid, round_to_grid, search_group

_DAMPING = 0.01


def gptq(
    weight: Floats, hessian: Floats, scheme: Scheme, stored: Stored, importance: Floats | None = None
) -> QuantizedMatrix:
    """Quantize `weight` `[N, K]` so that tr((W − Ŵ) H (W − Ŵ)ᵀ) is small.

    Args:
        weight: `[N, K]`.
        gram: H `[K, K]`, the Hessian of the inputs.
        scheme: bits, group size and grid.
        stored: how scales are.
        importance: `[K]`, weights of the scale search; the damped diagonal of H if not given.
    """
    damped = damp(hessian)
    factor = inverse_factor(damped).astype(np.float32)
    importance = damped.diagonal().astype(np.float32) if importance is None else importance
    columns = np.array(weight.T, np.float32, order="C")
    grid = Grid(scheme, len(weight), len(columns), stored)
    for group, part in grid.groups():
        scale, zero = search_group(columns[part], importance[part], scheme, stored)
        grid.set_group(group, scale, zero)
        errors = _round_group(columns[part], factor[part, part], scale, zero, grid.codes[part], scheme.levels)
        columns[part.stop :] -= factor[part, part.stop :].T @ errors
    return grid.matrix()


def damp(hessian: Floats, share: float = _DAMPING) -> npt.NDArray[np.float64]:
    """H plus `share` of its mean diagonal; the identity where no input was ever seen."""
    mean = float(hessian.diagonal().mean())
    return hessian.astype(np.float64) + np.eye(len(hessian)) * (share * mean if mean > 0 else 1.0)


def inverse_factor(matrix: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The upper triangular U with UᵀU = H⁻¹, without forming the inverse.

    Flipping both axes turns numpy's lower Cholesky factor into an upper one: H = R Rᵀ, so U = R⁻¹.
    """
    upper = np.linalg.cholesky(matrix[::-1, ::-1])[::-1, ::-1]
    return _invert_upper(np.ascontiguousarray(upper))


def _round_group(
    columns: Floats, factor: Floats, scale: Floats, zero: Floats, codes: npt.NDArray[np.uint8], levels: int
) -> Floats:
    """Round `columns` `[size, N]` in order, into `codes`; return the scaled errors `[size, N]`."""
    errors = np.empty_like(columns)
    for j in range(len(columns)):
        current = columns[j] - factor[:j, j] @ errors[:j]
        rounded = round_to_grid(current, scale, zero, levels)
        codes[j] = rounded
        rounded -= zero
        rounded *= scale
        np.subtract(current, rounded, out=errors[j])
        errors[j] /= factor[j, j]
    return errors


def _invert_upper(matrix: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
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
