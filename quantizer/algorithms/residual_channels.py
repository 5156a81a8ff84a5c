"""Residual-coded channels: the few inputs whose rounding hurts most get a second code for what the first one lost.

After OWQ (Lee et al., 2023, arXiv:2306.02272), which keeps them in floating point. Here the matrix is extended,
`[Q(W) | Q(residual)]`, and so are its inputs, `[A | A[idx]]`: one product, one kernel. For GPTQ this is nothing
special: the extended Hessian says that a channel's second column can make up for its first one entirely.
"""

from dataclasses import dataclass

import numpy as np

from ..storage.matrix import Floats, Index
from ..storage.scheme import QuantConfig, Scheme
from .rtn import lost_by_input

_MAIN_SHARE = 1 / 64  # of its importance in the search of its first grid; the second code covers the rest


@dataclass(frozen=True)
class Extended:
    """Inputs some of which are repeated: input `K' ≥ inputs` reads what input `index[K' - inputs]` reads. The weights
    of the repeated ones begin as zeros.

    Attributes:
        hessian: its Hessian.
        importance: `[inputs + len(index)]` for the scale search.
        index: which inputs are repeated. Starts with zeros that only fill the last group of W.
    """

    hessian: Floats
    importance: Floats
    index: Index


def choose_residual_channels(weight: Floats, diagonal: Floats, scheme: Scheme, count: int) -> Index:
    """The `count` inputs with the largest diag(H)_j · Σ_n (W − Ŵ)²_nj under round-to-nearest, ascending."""
    predicted_kl = diagonal * lost_by_input(weight, scheme)
    worst = np.argsort(-predicted_kl, kind="stable")[:count]
    return np.sort(worst).astype(np.int64)


def extend(weight: Floats, hessian: Floats, diagonal: Floats, config: QuantConfig) -> Extended:
    """Repeat the residual-coded channels behind all others; the repeated ones begin a new group.

    Args:
        weight: `[N, K]`.
        hessian: `[K, K]`.
        diagonal: `[K]`, damped, for the scale search.
        config: scheme, and how many residual channels.
    """
    inputs = weight.shape[1]
    filler = -inputs % config.scheme.group_size
    chosen = choose_residual_channels(weight, diagonal, config.scheme, min(config.residual_channels, inputs))
    index = np.concatenate([np.zeros(filler, np.int64), chosen])
    reads = np.concatenate([np.arange(inputs), index])
    hessian = _repeated(hessian, index)
    hessian[inputs : inputs + filler] = hessian[:, inputs : inputs + filler] = (
        0  # the filler's weights are zero and stay so
    )
    importance = diagonal[reads]
    importance[chosen] *= np.float32(_MAIN_SHARE)
    return Extended(hessian, importance, index)


def _repeated(hessian: Floats, index: Index) -> Floats:
    """The Hessian with the inputs of `index` once more behind all others."""
    inputs = len(hessian)
    wide = np.empty((inputs + len(index), inputs + len(index)), np.float32)
    wide[:inputs, :inputs] = hessian
    wide[:inputs, inputs:] = hessian[:, index]
    wide[inputs:] = wide[index]
    return wide
