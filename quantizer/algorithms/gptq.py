"""GPTQ: round the inputs one after the other, and let those not yet rounded make up for each error.

Frantar et al., 2022, arXiv:2210.17323, in the form of Babai's nearest plane (Chen et al., 2025,
arXiv:2507.18553), which needs no inverse: with H = R Rᵀ, R upper triangular, the loss is ‖(W − Ŵ) R‖², and what a group
of inputs best makes up for is (W − Ŵ) R of the inputs before it, times the inverse of its own triangle.

(W − Ŵ) R is one matrix product for a block of inputs. The order is the natural one: act-order comes from permutations
that the neighbouring weights absorb (`permute.py`). Each group's grid is searched when its first input is reached, on
the weights as they are by then, and it is the grid that is stored.
"""

import numpy as np

from ..storage.matrix import Floats, QuantizedMatrix
from ..storage.scales import Stored
from ..storage.scheme import Scheme
from .grid import Grid, within
from .grid_search import round_to_grid, search_group, search_matrix
from .hessian import Hessian, InputStatistics
from .polish import polish


def quantize_rows(weight: Floats, scheme: Scheme, stored: Stored, inputs: InputStatistics) -> QuantizedMatrix:
    """GPTQ and as many rounds of polish as are wanted; the search where nothing is known of the inputs."""
    if inputs.hessian is None:
        return search_matrix(weight, inputs.importance, scheme, stored)
    matrix = gptq(weight, inputs.hessian, scheme, stored, inputs.importance)
    return polish(matrix, weight, inputs.hessian, stored, inputs.polishing) if inputs.polishing else matrix


def gptq(
    weight: Floats, hessian: Hessian, scheme: Scheme, stored: Stored, importance: Floats | None = None
) -> QuantizedMatrix:
    """Quantize `weight` `[N, K]` so that tr((W − Ŵ) H (W − Ŵ)ᵀ) is small.

    Args:
        weight: `[N, K]`. The codes of a row are the same whichever rows are beside it.
        hessian: of its inputs.
        scheme: bits, group size and grid.
        stored: how scales are.
        importance: `[K]`, weights of the scale search; the damped diagonal of H if not given.
    """
    grid = Grid(scheme, len(weight), weight.shape[1], stored)
    columns = grid.columns(weight)
    importance = hessian.importance if importance is None else importance
    arrays, factor = hessian.arrays, hessian.factor
    lost = arrays.zeros(columns.shape)  # W − Ŵ of the inputs that are rounded
    for outer, blocks in grid.blocks():
        carried = arrays.product(factor[: outer.start, outer].T, lost[: outer.start])
        corner = arrays.read(factor[outer, outer])
        errors = np.zeros_like(carried)
        for block in blocks:
            at = block.inside
            carried[at] += corner[: at.start, at].T @ errors[: at.start]
            for group, part in block.groups:
                inside = within(part, outer)
                carried[inside] += corner[at.start : inside.start, inside].T @ errors[at.start : inside.start]
                triangle = corner[inside, inside].astype(np.float64)
                target = columns[part] + np.linalg.inv(triangle).T.astype(np.float32) @ carried[inside]
                grid.set_group(group, *search_group(target, importance[part], scheme, grid.stored))
                _round_group(grid, group, part, target, (triangle / triangle.diagonal()).T.astype(np.float32))
                np.subtract(columns[part], grid.steps(group, part) * grid.scales[group], out=errors[inside])
        lost[outer] = arrays.hold(errors)
    return grid.matrix()


def _round_group(grid: Grid, group: int, part: slice, target: Floats, shares: Floats) -> None:
    """Round `target` `[size, N']` in order; `shares[j, i]` of the error of input i is made up for by input j."""
    scale, zero = grid.scales[group], grid.zeros[group]
    errors = np.empty_like(target)
    for j in range(len(target)):
        current = target[j] + shares[j, :j] @ errors[:j]
        rounded = round_to_grid(current, scale, zero, grid.scheme.levels)
        grid.codes[part.start + j] = rounded
        rounded -= zero
        rounded *= scale
        np.subtract(target[j], rounded, out=errors[j])
