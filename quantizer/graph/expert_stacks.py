"""Stacks of experts' matrices: each quantized by itself, stored together as their operator reads them.

1. operator   row by row: codes `[E, N, K · bits / 8]`, scales `[E, N, groups]`, zero points `[E, N, bytes]` of QMoE
2. dense      gate_up row by row as one matrix `[E · 2I, H]`; down side by side as one `[H, E · I]`, whose product is
              the sum over the experts
"""

from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain

import numpy as np
import numpy.typing as npt

from runtime.bundle.manifest import QuantizedTensor

from ..parallel import parallel_map
from ..storage.matrix import NO_RESIDUALS, Floats, QuantizedMatrix, join
from ..storage.packing import PackedMatrix
from ..storage.pieces import Place, packed_piece, store_pieces
from ..storage.scheme import GROUP_SIZES, QuantConfig, Scheme
from ..storage.stored import StoredMatrix
from ..storage.storing import store_codes
from ..storage.weights_file import WeightsWriter
from .quantizable import QuantizableWeight

_LARGEST_GROUP = 128  # that QMoE was tried with


def experts_config(site: QuantizableWeight, scheme: Scheme) -> QuantConfig:
    """The nearest to `scheme` that experts can have: groups that divide their inputs, no residual channels."""
    fits = [g for g in GROUP_SIZES if g <= min(scheme.group_size, _LARGEST_GROUP) and site.divisor % g == 0]
    return QuantConfig(Scheme(scheme.bits, fits[-1], scheme.symmetric))


def quantize_stack(
    weights: Iterable[Floats], quantized: Callable[[int, Floats], QuantizedMatrix]
) -> tuple[list[QuantizedMatrix], float]:
    """Quantize each matrix by number, several at a time; return them with the relative error ‖W − Ŵ‖ / ‖W‖ of all."""

    def one(expert: int, weight: Floats) -> tuple[QuantizedMatrix, float, float]:
        matrix = quantized(expert, weight)
        return matrix, matrix.squares_lost(weight), float(np.vdot(weight, weight))

    done = [*parallel_map(partial(one, expert, weight) for expert, weight in enumerate(weights))]
    lost, whole = (sum(figures) for figures in zip(*(entry[1:] for entry in done), strict=True))
    return [matrix for matrix, _, _ in done], float(np.sqrt(lost / whole)) if whole else 0.0


def store_stack(
    writer: WeightsWriter,
    site: QuantizableWeight,
    stack: Iterable[Callable[[], QuantizedMatrix]],
    kind: Callable[[], npt.DTypeLike],
    error: float,
    at_once: int | None = None,
) -> tuple[StoredMatrix, QuantizedTensor]:
    """Make, pack, check and write a stack; `at_once` matrices are in memory at a time, but all of case 2's `down`.

    Args:
        writer: of weights.bin.
        site: the stack.
        stack: makes each matrix.
        kind: the type of the scales, asked when a matrix is made.
        error: ‖W − Ŵ‖ / ‖W‖.
        at_once: by default as many as there are threads.
    """
    if site.joined == "inputs":
        whole = join([*parallel_map(stack, at_once)], axis=1)
        return store_codes(writer, site.weight, whole, NO_RESIDUALS, kind(), error)
    stack = iter(stack)
    first = next(stack)()

    def packed(make: Callable[[], QuantizedMatrix]) -> PackedMatrix:
        matrix = make()
        return packed_piece(site.weight, matrix, kind())

    pieces = parallel_map((partial(packed, make) for make in chain([lambda: first], stack)), at_once)
    return store_pieces(writer, _place_of(site, first.scheme), pieces, error)


def _place_of(site: QuantizableWeight, scheme: Scheme) -> Place:
    """Of a stack that is stored row by row."""
    if site.joined == "stack":
        return Place(site.weight, scheme, site.rows, site.inputs, site.count)
    return Place(site.weight, scheme, site.count * site.rows, site.inputs)
