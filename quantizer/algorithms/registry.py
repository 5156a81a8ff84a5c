"""One matrix, by the recipe: from float weights to codes."""

import numpy as np
import numpy.typing as npt

from ..recipe import QuantConfig
from ..storage.matrix import Floats, QuantizedMatrix, join
from ..storage.scales import plan_scales, rows_of
from .gptq import damp, gptq
from .grid_search import search_matrix
from .polish import polish
from .residual_channels import Index, extend
from .rtn import round_to_nearest

_WEIGHTS = 1 << 23  # that GPTQ takes at a time; rows do not know of each other, and a token table has many
NO_OUTLIERS: Index = np.zeros(0, np.int64)


def quantize_matrix(
    weight: Floats, hessian: Floats | None, choice: QuantConfig, method: str, kind: npt.DTypeLike, polishing: int = 0
) -> tuple[QuantizedMatrix, Index]:
    """Quantize `weight` `[N, K]`; return its codes and which inputs it repeats as outliers.

    Args:
        weight: float weights.
        gram: Hessian of the inputs `[K, K]`; None where nothing is known of them.
        choice: how it is stored.
        method: "rtn", "search" or "gptq", of which the last needs `gram` (and falls back to "search" without).
        kind: the float type that scales are stored in where they are not 8-bit multiples of a step.
        polishing: rounds of refinement after GPTQ.
    """
    scheme = choice.scheme
    stored = plan_scales(weight, scheme, kind)
    if method == "rtn":
        return round_to_nearest(weight, scheme, stored), NO_OUTLIERS
    if hessian is None:
        return search_matrix(weight, np.ones(weight.shape[1], np.float32), scheme, stored), NO_OUTLIERS
    importance, index = damp(hessian).diagonal().astype(np.float32), NO_OUTLIERS
    if method == "search":
        return search_matrix(weight, importance, scheme, stored), index
    if choice.outliers:
        wide = extend(weight, hessian, importance, choice)
        weight, hessian, importance, index = wide.weight, wide.hessian, wide.importance, wide.index

    def careful(part: slice) -> QuantizedMatrix:
        own = rows_of(stored, part)
        matrix = gptq(weight[part], hessian, scheme, own, importance)
        return polish(matrix, weight[part], hessian, own, polishing) if polishing else matrix

    step = max(1, _WEIGHTS // weight.shape[1])
    return join([careful(slice(start, start + step)) for start in range(0, len(weight), step)]), index
