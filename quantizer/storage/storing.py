"""From a quantized matrix to checked bytes in weights.bin."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from runtime.bundle.manifest import QuantizedTensor

from ..parallel import parallel_map
from .matrix import Floats, Index, QuantizedMatrix, effective
from .pieces import Place, packed_piece, store_pieces
from .scheme import Scheme
from .stored import OutlierWeights, StoredMatrix, StoredOutliers
from .weights_file import ALIGNMENT, WEIGHTS_NAME, Placed, WeightsWriter

_CHUNK = 1 << 19  # weights: packed and checked while they are in the cache
_HALF_RANGE = (2.0**-12, 2.0**15)  # below, even the largest groups would lose precision


def scale_type(weight: Floats, scheme: Scheme, activations: ir.DataType) -> npt.DTypeLike:
    """The type that the scales of `weight` are stored in.

    Half precision saves half a bit per weight at group 32 where activations are float32, and costs nothing: the Cast is
    folded when ONNX Runtime loads. A matrix whose largest scale would be subnormal or infinite in it keeps float32.
    """
    if activations != ir.DataType.FLOAT:
        return activations.numpy()
    return scale_type_of(largest_of(weight), scheme)


def largest_of(weight: Floats) -> float:
    """The largest absolute weight, without a copy of them all; NaN if one is."""
    return float(max(weight.max(initial=0.0), -weight.min(initial=0.0)))


def scale_type_of(largest: float, scheme: Scheme) -> npt.DTypeLike:
    """The same, by the largest absolute weight, where activations are float32."""
    return np.float16 if _HALF_RANGE[0] <= largest / scheme.levels <= _HALF_RANGE[1] else np.float32


def store_codes(
    writer: WeightsWriter,
    name: str,
    matrix: QuantizedMatrix,
    index: Index,
    stored: npt.DTypeLike,
    error: float,
    outliers: OutlierWeights | None = None,
) -> tuple[StoredMatrix, QuantizedTensor]:
    """Pack, check and write one matrix.

    Args:
        writer: of weights.bin.
        name: of the weight.
        matrix: its codes.
        index: which inputs are repeated behind the others.
        stored: the type that scales are stored in.
        error: its `relative_error`.
        outliers: inputs that stay in floating point.

    Raises:
        QuantizationError: the packed bytes do not decode to the matrix.
    """
    place = Place(name, matrix.scheme, *matrix.codes.shape)
    tasks = (partial(packed_piece, name, matrix.rows(part), stored) for part in _slices(*matrix.codes.shape))
    made, entry = store_pieces(writer, place, parallel_map(tasks), error)
    module, inputs = name.removesuffix(".weight"), place.inputs - len(index)
    repeated = _write(writer, f"{module}.outliers", index) if len(index) else None
    beside = None if outliers is None else _store_outliers(writer, module, outliers, inputs)
    residuals = _residuals(index, inputs, matrix.scheme.group_size)
    return (
        replace(made, inputs=inputs, residuals=repeated, index=index, beside=beside),
        replace(entry, outliers=residuals, float_inputs=0 if outliers is None else len(outliers.index)),
    )


def outlier_bytes(rows: int, inputs: int, outliers: int) -> int:
    """Bytes, at most, of a matrix's outlier channels in weights.bin."""
    return (4 * rows * outliers + 8 * outliers + 4 * inputs + 2 * ALIGNMENT) if outliers else 0


def _store_outliers(writer: WeightsWriter, module: str, outliers: OutlierWeights, inputs: int) -> StoredOutliers:
    """Weights in half precision, where they fit, and what the other inputs are multiplied by: 1, or 0 for these."""
    mask = np.ones(inputs, np.float32)
    mask[outliers.index] = 0
    fits = float(np.abs(outliers.values).max(initial=0)) < np.finfo(np.float16).max
    values = outliers.values.astype(np.float16 if fits else np.float32)
    return StoredOutliers(
        _write(writer, f"{module}.outlier_channels", outliers.index),
        _write(writer, f"{module}.outlier_weights", values),
        _write(writer, f"{module}.outlier_mask", mask),
    )


def relative_error(weight: Floats, matrix: QuantizedMatrix, index: Index) -> float:
    """‖W − Ŵ‖ / ‖W‖, by slices of rows."""

    def squares(part: slice) -> tuple[float, float]:
        difference = weight[part] - effective(matrix.rows(part), index)
        return float(np.vdot(difference, difference)), float(np.vdot(weight[part], weight[part]))

    lost = whole = 0.0
    for part_lost, part_whole in parallel_map(partial(squares, part) for part in _slices(*weight.shape)):
        lost, whole = lost + part_lost, whole + part_whole
    return float(np.sqrt(lost / whole)) if whole else 0.0


def _slices(rows: int, inputs: int) -> Iterator[slice]:
    step = max(1, _CHUNK // inputs)
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def _residuals(index: Index, inputs: int, group_size: int) -> int:
    return len(index) - (-inputs % group_size) if len(index) else 0


def _write(writer: WeightsWriter, name: str, array: npt.NDArray[Any]) -> ir.ExternalTensor:
    placed: Placed = writer.add(name, array)
    return placed.tensor(WEIGHTS_NAME, writer.folder)
