"""Polish a quantized matrix on its Hessian: better scales for its codes, then better codes for its scales.

Both are Gauss–Seidel steps on E = tr(D H Dᵀ), D = W − Ŵ: group by group the best scale, input by input the best code
(the coordinate descent of QuantEase, Behdin et al., 2023, arXiv:2309.01885). E never grows.
"""

import numpy as np

from ..storage.matrix import Floats, QuantizedMatrix
from ..storage.scales import Stored, round_scales
from .grid_search import Grid


def polish(
    matrix: QuantizedMatrix, weight: Floats, hessian: Floats, stored: Stored, rounds: int = 2
) -> QuantizedMatrix:
    """Improve `matrix` as a stand-in for `weight` `[N, K]` under H = `gram` `[K, K]`."""
    grid = _open(matrix, stored)
    columns = np.ascontiguousarray(weight.T)
    spread = np.repeat(np.arange(len(grid.scales)), matrix.scheme.group_size)[: len(columns)]
    for _ in range(rounds):
        steps = grid.codes.astype(np.float32) - grid.zeros[spread]
        difference = columns - steps * grid.scales[spread]
        gradient = hessian @ difference  # H (W − Ŵ)ᵀ, [K, N]
        _refit_scales(grid, steps, gradient, hessian, stored)
        difference = columns - steps * grid.scales[spread]
        _refit_codes(grid, hessian @ difference, hessian)
    return grid.matrix()


def loss(matrix: QuantizedMatrix, weight: Floats, hessian: Floats) -> float:
    """E = tr((W − Ŵ) H (W − Ŵ)ᵀ): the mean squared error of the outputs, summed over them."""
    difference = weight - matrix.dequantize()
    return float(np.vdot(difference @ hessian, difference))


def _refit_scales(grid: Grid, steps: Floats, gradient: Floats, hessian: Floats, stored: Stored) -> None:
    """One pass over the groups; `gradient` is kept true as scales change."""
    for group, part in grid.groups():
        step = steps[part]
        slope = np.einsum("kn,kn->n", step, gradient[part])
        curve = np.einsum("kn,kn->n", step, hessian[part, part] @ step)
        old = grid.scales[group]
        new = round_scales(old + slope / np.maximum(curve, np.float32(1e-30)), stored)
        change = new - old
        change[change * (change * curve - 2 * slope) >= 0] = 0  # rounding to the stored type may have undone it
        grid.scales[group] += change
        gradient -= hessian[:, part] @ (step * change)


def _refit_codes(grid: Grid, gradient: Floats, hessian: Floats) -> None:
    """One pass over the inputs, each code moved to its best value given all others."""
    levels = np.float32(grid.scheme.levels)
    for group, part in grid.groups():
        scale = grid.scales[group]
        safe = np.where(scale == 0, np.float32(np.inf), scale)
        moved = np.zeros((part.stop - part.start, len(scale)), np.float32)
        inner = hessian[part, part]
        for j, k in enumerate(range(part.start, part.stop)):
            slope = gradient[k] - inner[j, :j] @ moved[:j]
            old = grid.codes[k].astype(np.float32)
            new = np.clip(old + np.rint(slope / (safe * max(hessian[k, k], np.float32(1e-30)))), 0, levels)
            grid.codes[k] = new
            moved[j] = (new - old) * scale
        gradient -= hessian[:, part] @ moved


def _open(matrix: QuantizedMatrix, stored: Stored) -> Grid:
    rows, inputs = matrix.codes.shape
    grid = Grid(matrix.scheme, rows, inputs, stored)
    grid.codes[:] = matrix.codes.T
    grid.scales[:] = matrix.scales.T
    grid.zeros[:] = np.float32(matrix.scheme.middle) if matrix.zero_points is None else matrix.zero_points.T
    return grid
