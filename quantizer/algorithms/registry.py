"""One matrix, by the recipe: from float weights to codes."""

from functools import partial

import numpy as np
import numpy.typing as npt

from ..parallel import parallel_map
from ..recipe import QuantConfig
from ..storage.matrix import Floats, QuantizedMatrix, join
from ..storage.scales import plan_scales, rows_of
from .gptq import gptq
from .grid_search import search_matrix
from .hessian import Hessian
from .polish import polish
from .residual_channels import Index, extend
from .rtn import round_to_nearest

_ROWS = 1024  # that a thread takes at a time; rows do not know of each other, and a token table has many
NO_OUTLIERS: Index = np.zeros(0, np.int64)


def quantize_matrix(
    weight: Floats,
    hessian: Hessian | Floats | None,
    choice: QuantConfig,
    method: str,
    kind: npt.DTypeLike,
    polishing: int = 0,
) -> tuple[QuantizedMatrix, Index]:
    """Quantize `weight` `[N, K]`; return its codes and which inputs it repeats as outliers.

    The codes are the same for any number of threads, and those of a row whichever rows are beside it.

    Args:
        weight: float weights.
        hessian: of the inputs `[K, K]`, shared by the matrices that read the same; None where nothing is known of them.
        choice: how it is stored.
        method: "rtn", "search" or "gptq", of which the last needs `hessian` (and falls back to "search" without).
        kind: the float type that scales are stored in where they are not 8-bit multiples of a step.
        polishing: rounds of refinement after GPTQ.
    """
    scheme = choice.scheme
    stored = plan_scales(weight, scheme, kind)
    known = hessian if isinstance(hessian, Hessian) or hessian is None else Hessian(hessian)
    importance, index = np.ones(weight.shape[1], np.float32) if known is None else known.importance, NO_OUTLIERS
    if method == "gptq" and known is not None and choice.outliers:
        wide = extend(weight, known.values, importance, choice)
        weight, known, importance, index = wide.weight, Hessian(wide.hessian), wide.importance, wide.index

    def slice_of(part: slice) -> QuantizedMatrix:
        rows, own = weight[part], rows_of(stored, part)
        if method == "rtn":
            return round_to_nearest(rows, scheme, own)
        if method == "search" or known is None:
            return search_matrix(rows, importance, scheme, own)
        matrix = gptq(rows, known, scheme, own, importance)
        return polish(matrix, rows, known, own, polishing) if polishing else matrix

    parts = (slice(start, start + _ROWS) for start in range(0, len(weight), _ROWS))
    return join([*parallel_map(partial(slice_of, part) for part in parts)]), index
