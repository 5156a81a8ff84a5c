"""One matrix, by the recipe: from float weights to codes, in slices of rows on all cores."""

from functools import partial
from importlib import import_module

import numpy as np
import numpy.typing as npt

from ..parallel import parallel_map
from ..storage.matrix import NO_RESIDUALS, Floats, Index, QuantizedMatrix, join
from ..storage.scales import plan_scales, rows_of
from ..storage.scheme import QuantConfig
from .hessian import Hessian, InputStatistics
from .registry import METHODS
from .residual_channels import extend

_SLICE = 6 << 20  # weights: steps of shorter ones take longer to be begun than to be computed
_ROWS = (1024, 3072)  # of a slice, at least and at most: of more, what is worked on leaves the cache


def quantize_matrix(
    weight: Floats,
    hessian: Hessian | Floats | None,
    config: QuantConfig,
    method: str,
    kind: npt.DTypeLike,
    polishing: int = 0,
    slice_rows: int | None = None,
) -> tuple[QuantizedMatrix, Index]:
    """Quantize `weight` `[N, K]`; return its codes and the inputs that it repeats as residual-coded channels.

    The codes are the same for any number of threads, and those of a row whichever rows are beside it.

    Args:
        weight: float weights.
        hessian: of the inputs `[K, K]`, shared by the matrices that read the same; None where nothing is known of them.
        config: how it is stored.
        method: one of `METHODS`.
        kind: the float type that scales are stored in where they are not 8-bit multiples of a step.
        polishing: rounds of refinement after GPTQ.
        slice_rows: rows that a thread takes at a time; by default as many as suit the inputs.
    """
    stored = plan_scales(weight, config.scheme, kind)
    known = hessian if isinstance(hessian, Hessian) or hessian is None else Hessian(hessian)
    importance, index = np.ones(weight.shape[1], np.float32) if known is None else known.importance, NO_RESIDUALS
    if METHODS[method].needs_text and known is not None and config.residual_channels:
        wide = extend(weight, known.values, importance, config)
        known, importance, index = Hessian(wide.hessian), wide.importance, wide.index
    inputs = InputStatistics(known, importance, polishing)
    quantize_rows = import_module(f".{METHODS[method].module}", __package__).quantize_rows

    def slice_of(part: slice) -> QuantizedMatrix:
        rows = np.pad(weight[part], ((0, 0), (0, len(index)))) if len(index) else weight[part]
        matrix: QuantizedMatrix = quantize_rows(rows, config.scheme, rows_of(stored, part), inputs)
        return matrix

    each = slice_rows or min(max(_SLICE // (weight.shape[1] + len(index)), _ROWS[0]), _ROWS[1])
    parts = (slice(start, start + each) for start in range(0, len(weight), each))
    return join([*parallel_map(partial(slice_of, part) for part in parts)]), index
