"""Quantize a matrix while it is read: blocks of rows become codes, and only the codes are kept."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from quantizer.matrix import QuantizedMatrix
from quantizer.method import quantize_matrix
from quantizer.storing import scale_type_of

from .checkpoint.row_blocks import row_blocks
from .loading import load_weight, target_rows

if TYPE_CHECKING:
    from quantizer.scheme import Choice
    from quantizer.sites import Site

    from .weights import Weight

FloatArray = npt.NDArray[np.float32]
Block = tuple[npt.NDArray[np.int64], FloatArray]  # rows of the graph's matrix, and their values


def read_packed(
    weight: "Weight", site: "Site", choice: "Choice", method: str
) -> tuple[QuantizedMatrix, npt.DTypeLike, float]:
    """The codes of a weight, the type that their scales are stored in, and ‖W − Ŵ‖ / ‖W‖.

    They are those that `onnxlm quantize` makes of the exported matrix: its rows do not depend on each other.
    """
    scheme, kind = choice.scheme, _scale_kind(weight, site, choice)
    codes = np.full((site.rows, site.inputs), scheme.middle, np.uint8)
    scales = np.zeros((site.rows, scheme.groups(site.inputs)), np.float32)
    zeros = None if scheme.symmetric else np.zeros(scales.shape, np.uint8)
    lost = whole = 0.0
    for rows, values in _blocks(weight, site):
        block, _ = quantize_matrix(values, None, choice, method, kind)
        codes[rows], scales[rows] = block.codes, block.scales
        if zeros is not None:
            assert block.zero_points is not None
            zeros[rows] = block.zero_points
        difference = values - block.dequantize()
        lost, whole = lost + float(np.vdot(difference, difference)), whole + float(np.vdot(values, values))
    return QuantizedMatrix(scheme, codes, scales, zeros), kind, float(np.sqrt(lost / whole)) if whole else 0.0


def _scale_kind(weight: "Weight", site: "Site", choice: "Choice") -> npt.DTypeLike:
    if weight.dtype.numpy() != np.float32:
        activations: npt.DTypeLike = weight.dtype.numpy()
        return activations
    largest = max((float(np.abs(values).max(initial=0.0)) for _, values in _blocks(weight, site)), default=0.0)
    return scale_type_of(largest, choice.scheme)


def _blocks(weight: "Weight", site: "Site") -> Iterator[Block]:
    """All rows that hold weights; those that the graph adds are left out, and decode to zero."""
    plan = weight.plan
    if plan.computed is not None or plan.columns is not None or weight.stored != "out_in" or weight.each_head:
        matrix = load_weight(weight).astype(np.float32, copy=False)
        yield np.arange(site.rows), np.ascontiguousarray(matrix.T if site.transposed else matrix)
        return
    rows, first = target_rows(weight), 0
    for source in weight.sources:
        for block in row_blocks(source):
            values = block.read()
            if plan.scale != 1 or plan.offset:
                values = values * np.float32(plan.scale) + np.float32(plan.offset)
            if weight.dtype.numpy() != np.float32:
                values = values.astype(weight.dtype.numpy()).astype(np.float32)
            yield rows[first : first + len(values)], values
            first += len(values)
