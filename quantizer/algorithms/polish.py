"""Polish a quantized matrix on its Hessian: better scales for its codes, then better codes for its scales.

Both are Gauss–Seidel steps on E = tr(D H Dᵀ), D = W − Ŵ: group by group the best scale, then input by input the best
code (the coordinate descent of QuantEase, Behdin et al., 2023, arXiv:2309.01885). E never grows. The gradient is one
matrix product for a block of inputs; inside the block it is kept true as scales and codes change.
"""

from dataclasses import dataclass

import numpy as np

from ..storage.matrix import Floats, QuantizedMatrix
from ..storage.scales import Stored, round_scales
from .grid import Grid, within
from .hessian import Hessian

_TINY = np.float32(1e-30)


def polish(
    matrix: QuantizedMatrix, weight: Floats, hessian: Hessian, stored: Stored, rounds: int = 2
) -> QuantizedMatrix:
    """Improve `matrix` as a stand-in for `weight` `[N, K]` under H; each row by itself."""
    grid = Grid.of(matrix, stored)
    arrays, held = hessian.arrays, hessian.held
    lost = grid.columns(weight)  # W − Ŵ
    for group, part in grid.groups():
        lost[part] -= grid.steps(group, part) * grid.scales[group]
    kept = arrays.hold(lost)
    for _ in range(rounds):
        for outer, blocks in grid.blocks():
            gradient = arrays.product(held[outer], kept)  # H (W − Ŵ)ᵀ
            state = _Outer(gradient, arrays.read(held[outer, outer]), np.zeros_like(gradient))
            for block in blocks:
                state.enter(block.inside)
                for group, part in block.groups:
                    _polish_group(grid, group, part, within(part, outer), block.inside.stop, state)
            lost[outer] -= state.moves
            kept[outer] = arrays.hold(lost[outer])
    return grid.matrix()


def loss(matrix: QuantizedMatrix, weight: Floats, hessian: Hessian) -> float:
    """E = tr((W − Ŵ) H (W − Ŵ)ᵀ): the mean squared error of the outputs, summed over them."""
    difference = weight - matrix.dequantize()
    return float(np.vdot(difference @ hessian.values, difference))


@dataclass(frozen=True)
class _Outer:
    """An outer block of inputs: its gradient `[size, N]`, its part of H, and how its weights have changed so far."""

    gradient: Floats
    corner: Floats
    moves: Floats

    def enter(self, block: slice) -> None:
        """Let the gradient of a block follow what changed before it."""
        self.gradient[block] -= self.corner[block, : block.start] @ self.moves[: block.start]

    def follow(self, start: int, stop: int, inside: slice, change: Floats) -> None:
        """Let the gradient of `start … stop` follow a change of the inputs `inside`."""
        self.gradient[start:stop] -= self.corner[start:stop, inside] @ change


def _polish_group(grid: Grid, group: int, part: slice, inside: slice, stop: int, state: _Outer) -> None:
    """Scales, then codes, and what the gradient is then up to the block's end; `inside` is the group in `state`."""
    corner = state.corner[inside, inside]
    change = _refit_scale(grid, group, part, state.gradient[inside], corner)
    state.follow(inside.start, stop, inside, change)
    moved = _refit_codes(grid, group, part, state.gradient[inside], corner)
    state.follow(inside.stop, stop, inside, moved)
    np.add(change, moved, out=state.moves[inside])


def _refit_scale(grid: Grid, group: int, part: slice, gradient: Floats, corner: Floats) -> Floats:
    """Move the scales of one group to their best values; return how its weights `[size, N]` change."""
    steps = grid.steps(group, part)
    slope = np.einsum("kn,kn->n", steps, gradient)
    curve = np.einsum("kn,kn->n", steps, corner @ steps)
    change = round_scales(grid.scales[group] + slope / np.maximum(curve, _TINY), grid.stored) - grid.scales[group]
    change[change * (change * curve - 2 * slope) >= 0] = 0  # rounding to the stored type may have undone it
    grid.scales[group] += change
    steps *= change
    return steps


def _refit_codes(grid: Grid, group: int, part: slice, gradient: Floats, corner: Floats) -> Floats:
    """Move the codes of one group, input by input, to their best values; return how its weights change."""
    scale, levels = grid.scales[group], np.float32(grid.scheme.levels)
    safe = np.where(scale == 0, np.float32(np.inf), scale)
    moved = np.empty_like(gradient)
    for j in range(len(moved)):
        codes = grid.codes[part.start + j]
        slope = gradient[j] - corner[j, :j] @ moved[:j]
        slope /= safe * max(corner[j, j], _TINY)
        np.rint(slope, out=slope)
        slope += codes
        np.maximum(slope, 0, out=slope)
        np.minimum(slope, levels, out=slope)
        np.subtract(slope, codes, out=moved[j])
        moved[j] *= scale
        codes[:] = slope
    return moved
