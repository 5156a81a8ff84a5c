"""Quantize a matrix while it is read: blocks of rows become codes, and only the codes are kept."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from quantizer.algorithms.quantize_matrix import quantize_matrix
from quantizer.parallel import parallel_map
from quantizer.storage.matrix import QuantizedMatrix
from quantizer.storage.storing import scale_type_of

from ..checkpoint.row_blocks import Rows, row_blocks
from .read import load_weight, target_rows
from .stacks import slices

if TYPE_CHECKING:
    from quantizer.graph.quantizable import QuantizableWeight
    from quantizer.storage.scheme import QuantConfig

    from .plan import Weight

FloatArray = npt.NDArray[np.float32]
STACK_AT_ONCE = 2  # matrices of a stack that are packed beside each other
Block = tuple[npt.NDArray[np.int64], Callable[[], FloatArray]]  # rows of the graph's matrix; reads their values


def read_packed(
    weight: "Weight", site: "QuantizableWeight", config: "QuantConfig", method: str
) -> tuple[QuantizedMatrix, npt.DTypeLike, float]:
    """The codes of a weight, the type that their scales are stored in, and ‖W − Ŵ‖ / ‖W‖.

    They are those that `onnxlm quantize` makes of the exported matrix: its rows do not depend on each other.
    """
    kind = _scale_kind([weight], site, config)
    packed = _read(weight, site, config, method, kind)
    return packed.matrix, kind, relative_loss([(packed.lost, packed.whole)])


def read_packed_stack(
    weight: "Weight", site: "QuantizableWeight", config: "QuantConfig", method: str
) -> tuple[Iterator["Packed"], npt.DTypeLike]:
    """The same of each matrix of a stack, made as they are asked for; scales of all have one type."""
    kind = _scale_kind(slices(weight), site, config)
    tasks = (partial(_read, part, site, config, method, kind) for part in slices(weight))
    return parallel_map(tasks, STACK_AT_ONCE), kind


@dataclass(frozen=True)
class Packed:
    """A quantized matrix, and the squares of what its weights lose and of what they are."""

    matrix: QuantizedMatrix
    lost: float
    whole: float


def relative_loss(losses: Sequence[tuple[float, float]]) -> float:
    """‖W − Ŵ‖ / ‖W‖ of all together."""
    lost, whole = (sum(figures) for figures in zip(*losses, strict=True))
    return float(np.sqrt(lost / whole)) if whole else 0.0


def _read(
    weight: "Weight", site: "QuantizableWeight", config: "QuantConfig", method: str, kind: npt.DTypeLike
) -> Packed:
    scheme = config.scheme
    codes = np.full((site.rows, site.inputs), scheme.middle, np.uint8)
    scales = np.zeros((site.rows, scheme.groups(site.inputs)), np.float32)
    zeros = None if scheme.symmetric else np.zeros(scales.shape, np.uint8)
    lost = whole = 0.0
    tasks = (partial(_quantized, block, config, method, kind) for block in _blocks(weight, site))
    for rows, block, block_lost, block_whole in parallel_map(tasks):
        codes[rows], scales[rows] = block.codes, block.scales
        if zeros is not None:
            assert block.zero_points is not None
            zeros[rows] = block.zero_points
        lost, whole = lost + block_lost, whole + block_whole
    return Packed(QuantizedMatrix(scheme, codes, scales, zeros), lost, whole)


def _quantized(
    block: Block, config: "QuantConfig", method: str, kind: npt.DTypeLike
) -> tuple[npt.NDArray[np.int64], QuantizedMatrix, float, float]:
    """Rows, their codes, and the squares of what they lose and of what they are."""
    rows, values = block[0], block[1]()
    matrix, _ = quantize_matrix(values, None, config, method, kind)
    difference = values - matrix.dequantize()
    return rows, matrix, float(np.vdot(difference, difference)), float(np.vdot(values, values))


def _scale_kind(weights: Iterable["Weight"], site: "QuantizableWeight", config: "QuantConfig") -> npt.DTypeLike:
    largest = 0.0
    for weight in weights:
        if weight.dtype.numpy() != np.float32:
            activations: npt.DTypeLike = weight.dtype.numpy()
            return activations
        tasks = (partial(_largest, read) for _, read in _blocks(weight, site))
        largest = max(largest, max(parallel_map(tasks), default=0.0))
    return scale_type_of(largest, config.scheme)


def _largest(read: Callable[[], FloatArray]) -> float:
    values = read()
    return float(max(values.max(initial=0.0), -values.min(initial=0.0)))


def _blocks(weight: "Weight", site: "QuantizableWeight") -> Iterator[Block]:
    """All rows that hold weights; those that the graph adds are left out, and decode to zero."""
    plan = weight.plan
    if plan.computed is not None or plan.columns is not None or weight.stored != "out_in" or weight.each_head:
        yield np.arange(site.rows), partial(_whole, weight, site)
        return
    rows, first = target_rows(weight), 0
    for source in weight.sources:
        for block in row_blocks(source):
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
