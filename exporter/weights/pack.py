"""Quantize a matrix while it is read: blocks of rows become packed codes, and only these are kept.

A block is read, rounded, packed and checked by one thread, and written while others are under way.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from quantizer.algorithms.quantize_matrix import quantize_matrix
from quantizer.graph.expert_stacks import store_stack
from quantizer.parallel import parallel_map
from quantizer.storage.matrix import NO_RESIDUALS, QuantizedMatrix
from quantizer.storage.packing import PackedMatrix
from quantizer.storage.pieces import Place, packed_piece, store_pieces
from quantizer.storage.storing import store_codes

from ..checkpoint.row_blocks import Rows, row_blocks
from .read import load_weight, target_rows
from .scale_kind import ScaleKind, settled
from .stacks import slices

if TYPE_CHECKING:
    from quantizer.graph.quantizable import QuantizableWeight
    from quantizer.storage.scheme import QuantConfig
    from quantizer.storage.stored import StoredMatrix
    from quantizer.storage.weights_file import WeightsWriter
    from runtime.bundle.manifest import QuantizedTensor

    from .plan import Weight

    Stored = tuple[StoredMatrix, QuantizedTensor]

FloatArray = npt.NDArray[np.float32]
STACK_AT_ONCE = 2  # matrices of a stack that are packed beside each other
BLOCK_VALUES = 1 << 19  # of a thread at a time: what is made of them stays in the cache of its core
Block = tuple[npt.NDArray[np.int64], Callable[[], FloatArray]]  # rows of the graph's matrix; reads their values


def store_packed(
    writer: "WeightsWriter", weight: "Weight", site: "QuantizableWeight", config: "QuantConfig", method: str
) -> "Stored":
    """Store a weight, or a stack of them, in the codes that `onnxlm quantize` makes of the exported one.

    Its rows do not depend on each other, but for the type of their scales; see `ScaleKind`.
    """
    store = _store_stack if site.role == "experts" else _store_matrix
    return settled(
        weight.dtype, config.scheme, lambda kind: store(writer, weight, site, _Packing(config, method, kind))
    )


@dataclass(frozen=True)
class _Packing:
    """How rows are packed."""

    config: "QuantConfig"
    method: str
    kind: ScaleKind

    def quantized(self, read: Callable[[], FloatArray]) -> "_Part":
        values = read()
        kind = self.kind.of(values)
        matrix, _ = quantize_matrix(values, None, self.config, self.method, kind)
        return _Part(matrix, matrix.squares_lost(values), float(np.vdot(values, values)), kind)


@dataclass(frozen=True)
class _Part:
    """Quantized rows, and the squares of what their weights lose and of what they are."""

    matrix: QuantizedMatrix
    lost: float
    whole: float
    kind: npt.DTypeLike


class _Losses:
    """‖W − Ŵ‖ / ‖W‖ of all parts together; whichever comes first, the sum is the same."""

    def __init__(self) -> None:
        self._lost: list[float] = []
        self._whole: list[float] = []

    def add(self, part: _Part) -> None:
        self._lost.append(part.lost)
        self._whole.append(part.whole)

    @property
    def relative(self) -> float:
        whole = math.fsum(self._whole)
        return math.sqrt(math.fsum(self._lost) / whole) if whole else 0.0


def _store_matrix(writer: "WeightsWriter", weight: "Weight", site: "QuantizableWeight", packing: _Packing) -> "Stored":
    losses = _Losses()
    if not streams(weight, site):
        matrix = _assembled(weight, site, packing, losses)
        return store_codes(writer, weight.name, matrix, NO_RESIDUALS, packing.kind.chosen, losses.relative)

    def piece(read: Callable[[], FloatArray]) -> PackedMatrix:
        part = packing.quantized(read)
        losses.add(part)
        return packed_piece(weight.name, part.matrix, part.kind)

    place = Place(weight.name, packing.config.scheme, site.rows, site.inputs)
    pieces = parallel_map(partial(piece, read) for _, read in _blocks(weight, site))
    stored, entry = store_pieces(writer, place, pieces, 0.0)
    return stored, replace(entry, relative_error=losses.relative)


def streams(weight: "Weight", site: "QuantizableWeight") -> bool:
    """Whether a matrix is written in the order in which its rows are read, and never in memory whole."""
    if _is_read_whole(weight):
        return False
    rows = target_rows(weight)
    return len(rows) == site.rows and bool((rows == np.arange(site.rows)).all())


def _store_stack(writer: "WeightsWriter", weight: "Weight", site: "QuantizableWeight", packing: _Packing) -> "Stored":
    losses = _Losses()
    stack = (partial(_assembled, one, site, packing, losses) for one in slices(weight))
    stored, entry = store_stack(writer, site, stack, lambda: packing.kind.chosen, 0.0, STACK_AT_ONCE)
    return stored, replace(entry, relative_error=losses.relative)


def _assembled(weight: "Weight", site: "QuantizableWeight", packing: _Packing, losses: _Losses) -> QuantizedMatrix:
    """A matrix whose rows come in another order, or less of them: rows that the graph adds decode to zero."""
    scheme = packing.config.scheme
    codes = np.full((site.rows, site.inputs), scheme.middle, np.uint8)
    scales = np.zeros((site.rows, scheme.groups(site.inputs)), np.float32)
    zeros = None if scheme.symmetric else np.zeros(scales.shape, np.uint8)

    def place(rows: npt.NDArray[np.int64], read: Callable[[], FloatArray]) -> None:
        part = packing.quantized(read)
        losses.add(part)
        codes[rows], scales[rows] = part.matrix.codes, part.matrix.scales
        if zeros is not None and part.matrix.zero_points is not None:
            zeros[rows] = part.matrix.zero_points

    for _ in parallel_map(partial(place, rows, read) for rows, read in _blocks(weight, site)):
        pass
    return QuantizedMatrix(scheme, codes, scales, zeros)


def _is_read_whole(weight: "Weight") -> bool:
    plan = weight.plan
    return plan.computed is not None or plan.columns is not None or weight.stored != "out_in" or weight.each_head


def _blocks(weight: "Weight", site: "QuantizableWeight") -> Iterator[Block]:
    """All rows that hold weights; those that the graph adds are left out."""
    if _is_read_whole(weight):
        yield np.arange(site.rows), partial(_whole, weight, site)
        return
    rows, first = target_rows(weight), 0
    for source in weight.sources:
        for block in row_blocks(source, BLOCK_VALUES):
            yield rows[first : first + block.shape[0]], partial(_values, block, weight)
            first += block.shape[0]


def _whole(weight: "Weight", site: "QuantizableWeight") -> FloatArray:
    matrix: npt.NDArray[Any] = load_weight(weight)
    return np.ascontiguousarray(matrix.T if site.transposed else matrix, np.float32)


def _values(block: Rows, weight: "Weight") -> FloatArray:
    """As the float graph would have them."""
    values = block.read()
    if weight.plan.scale != 1 or weight.plan.offset:
        values = values * np.float32(weight.plan.scale) + np.float32(weight.plan.offset)
    if weight.dtype.numpy() != np.float32:
        values = values.astype(weight.dtype.numpy()).astype(np.float32)
    return values
