"""Stacks of experts' matrices: each quantized by itself, stored together as their operator reads them.

1. operator   row by row: codes `[E, N, K · bits / 8]`, scales `[E, N, groups]`, zero points `[E, N, bytes]` of QMoE
2. dense      gate_up row by row as one matrix `[E · 2I, H]`; down side by side as one `[H, E · I]`, whose product is
              the sum over the experts
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from runtime.bundle.manifest import QuantizedTensor

from ..parallel import parallel_map
from ..storage.matrix import NO_RESIDUALS, Floats, QuantizedMatrix, join
from ..storage.packing import PackedMatrix, pack
from ..storage.scheme import GROUP_SIZES, QuantConfig, Scheme
from ..storage.stored import StoredMatrix
from ..storage.storing import store_codes
from ..storage.unpacking import require_round_trip
from ..storage.weights_file import WEIGHTS_NAME, WeightsWriter
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
        difference = weight - matrix.dequantize()
        return matrix, float(np.vdot(difference, difference)), float(np.vdot(weight, weight))

    done = [*parallel_map(partial(one, expert, weight) for expert, weight in enumerate(weights))]
    lost, whole = (sum(figures) for figures in zip(*(entry[1:] for entry in done), strict=True))
    return [matrix for matrix, _, _ in done], float(np.sqrt(lost / whole)) if whole else 0.0


def store_stack(
    writer: WeightsWriter, site: QuantizableWeight, stack: Iterable[QuantizedMatrix], kind: npt.DTypeLike, error: float
) -> tuple[StoredMatrix, QuantizedTensor]:
    """Pack, check and write a stack; of an iterator, one matrix is in memory at a time, but for case 2's `down`."""
    if site.joined == "inputs":
        return store_codes(writer, site.weight, join([*stack], axis=1), NO_RESIDUALS, kind, error)
    matrices = iter(stack)
    first = next(matrices)
    packed: list[PackedMatrix] = []  # of all matrices, less their codes

    def codes() -> Iterator[npt.NDArray[Any]]:
        for matrix in chain([first], matrices):
            made = pack(matrix, kind)
            require_round_trip(site.weight, made, matrix)
            packed.append(replace(made, codes=made.codes[:0]))
            yield made.codes

    scheme = first.scheme
    groups, blob = scheme.groups(site.inputs), scheme.group_size * scheme.bits // 8
    apart = site.joined == "stack"
    shape = (site.count, site.rows, groups * blob) if apart else (site.count * site.rows, groups, blob)
    placed = [writer.add_pieces(f"{site.name}.codes", codes(), ir.DataType.UINT8, shape)]
    parts: dict[str, list[Any]] = {
        "scales": [one.scales for one in packed],
        "zero_points": [one.zero_points for one in packed],
    }
    for part, arrays in parts.items():
        if arrays[0] is not None:
            joined = np.concatenate(arrays)
            placed.append(
                writer.add(f"{site.name}.{part}", joined.reshape(site.count, site.rows, -1) if apart else joined)
            )
    tensors = [one.tensor(WEIGHTS_NAME, writer.folder) for one in placed]
    rows = site.rows if apart else site.count * site.rows
    stored = StoredMatrix(scheme, rows, site.inputs, tensors[0], tensors[1], tensors[2] if tensors[2:] else None)
    return stored, QuantizedTensor(
        name=site.weight, bits=scheme.bits, group_size=scheme.group_size, symmetric=scheme.symmetric, outliers=0,
        bytes=sum(one.length for one in placed), relative_error=error,
    )  # fmt: skip
