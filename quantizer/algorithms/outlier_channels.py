"""Outlier channels: the few inputs that 8-bit activations cannot carry, kept in floating point beside the codes.

Kernels of level 4 round what a matrix reads to 8 bits, block by block: an input that is far larger than its neighbours
takes their precision. After LLM.int8() (Dettmers et al., 2022, arXiv:2208.07339), y = Q(W) x' + W[:, o] x[o], in
which x' is x with zeros for the outlier channels. Most models have none.
"""

import numpy as np

from ..storage.matrix import Floats, Index
from ..storage.stored import OutlierWeights
from .factor import damp

NONE: Index = np.zeros(0, np.int64)
_BLOCK = 32  # inputs that share a step
_PEAK = 4.0  # largest square in a block, over the largest mean square
_PEAK_OF_TWICE = 0.86  # in a block twice as wide, the largest square of normal values grows by a fifth
_TOO_MUCH = 1e-3  # of the outputs' power. Matrices of SmolLM2-135M lose 2e-5 to 2e-4; 4-bit codes lose about this much
_MOST = 1 / 32  # of the inputs
_ROWS = 256  # that the check looks at


def find_outlier_channels(weight: Floats, hessian: Floats) -> Index:
    """The inputs to keep in floating point, ascending; none where 8-bit activations lose little.

    Args:
        weight: `[N, K]`.
        hessian: `[K, K]` of its inputs.
    """
    weight = weight[:: max(1, len(weight) // _ROWS)]
    power = float(np.vdot(weight @ hessian, weight))
    squares, norms = hessian.diagonal().copy(), np.einsum("nk,nk->k", weight, weight)
    if power <= 0 or lost_to_rounding(squares, norms).sum() <= _TOO_MUCH * power:
        return NONE
    channels: list[int] = []
    while len(channels) < _MOST * len(squares):
        worst = int(lost_to_rounding(squares, norms).argmax()) * _BLOCK
        channels.append(worst + int(squares[worst : worst + _BLOCK].argmax()))
        squares[channels[-1]] = 0
        if lost_to_rounding(squares, norms).sum() <= _TOO_MUCH / 10 * power:
            break
    return np.sort(np.array(channels, np.int64))


def lost_to_rounding(squares: Floats, norms: Floats, block: int = _BLOCK) -> Floats:
    """Mean squared error of the outputs, for each block of inputs, when activations are rounded to 8 bits.

    Args:
        squares: mean squares of the inputs `[K]`.
        norms: Σ_n W²_nk `[K]`.
        block: inputs that share a step.
    """
    starts = np.arange(0, len(squares), block)
    peak = _PEAK + _PEAK_OF_TWICE * np.log2(block / _BLOCK)
    steps = peak * np.maximum.reduceat(squares, starts) / 127**2
    lost: Floats = (steps / 12 * np.add.reduceat(norms, starts)).astype(np.float32)
    return lost


def set_apart(weight: Floats, hessian: Floats, channels: Index) -> tuple[Floats, Floats]:
    """The matrix with zeros for its outlier channels, and the Hessian of what these cannot make up for."""
    others, left = weight.copy(), hessian.copy()
    others[:, channels] = 0
    left -= hessian[:, channels] @ _solve(hessian, channels, hessian[channels])
    left[channels] = left[:, channels] = 0
    return others, left


def refit(weight: Floats, hessian: Floats, channels: Index, quantized: Floats) -> OutlierWeights:
    """The outlier channels' weights that make up best for what the `quantized` others `[N, K]` lost."""
    lost = weight - quantized
    lost[:, channels] = 0
    values = weight[:, channels].T + _solve(hessian, channels, hessian[channels] @ lost.T)
    return OutlierWeights(channels, np.ascontiguousarray(values, np.float32))


def _solve(hessian: Floats, channels: Index, right: Floats) -> Floats:
    solved: Floats = np.linalg.solve(damp(hessian[np.ix_(channels, channels)]), right).astype(np.float32)
    return solved
