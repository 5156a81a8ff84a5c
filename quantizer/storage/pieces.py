"""A matrix on its way into weights.bin in pieces of rows: packed and checked in one thread each, written as they come.

What is in memory is the pieces that are under way, and scales and zero points, which lie behind the codes.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from runtime.bundle.manifest import QuantizedTensor

from .matrix import QuantizedMatrix
from .packing import PackedMatrix, pack
from .scheme import Scheme
from .stored import StoredMatrix
from .unpacking import require_round_trip
from .weights_file import WEIGHTS_NAME, WeightsWriter


@dataclass(frozen=True)
class Place:
    """What a matrix, or a stack of matrices, is called and how large it is.

    Attributes:
        weight: name of its initializer in floating point.
        scheme: of its codes.
        rows: of the matrix, or of each matrix of a stack.
        inputs: of each row, repeated ones included.
        count: matrices of a stack that lie apart; 0 for a matrix.
    """

    weight: str
    scheme: Scheme
    rows: int
    inputs: int
    count: int = 0

    @property
    def codes_shape(self) -> tuple[int, ...]:
        """As operators want it: of a stack, groups are not told apart."""
        groups, blob = self.scheme.groups(self.inputs), self.scheme.group_size * self.scheme.bits // 8
        return (self.count, self.rows, groups * blob) if self.count else (self.rows, groups, blob)

    def joined(self, parts: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """Scales or zero points of all rows."""
        whole: npt.NDArray[Any] = np.concatenate(parts)
        return whole.reshape(self.count, self.rows, -1) if self.count else whole


def packed_piece(weight: str, matrix: QuantizedMatrix, kind: npt.DTypeLike) -> PackedMatrix:
    """Some rows, packed with scales of type `kind`.

    Raises:
        QuantizationError: the packed bytes do not decode to the matrix.
    """
    packed = pack(matrix, kind)
    require_round_trip(weight, packed, matrix)
    return packed


def store_pieces(
    writer: WeightsWriter, place: Place, pieces: Iterable[PackedMatrix], error: float
) -> tuple[StoredMatrix, QuantizedTensor]:
    """Write the rows of `pieces`, in their order; `error` is ‖W − Ŵ‖ / ‖W‖."""
    rest: dict[str, list[npt.NDArray[Any]]] = {"scales": [], "zero_points": [], "steps": []}

    def codes() -> Iterator[npt.NDArray[Any]]:
        for piece in pieces:
            for part, arrays in rest.items():
                if (array := getattr(piece, part)) is not None:
                    arrays.append(array)
            yield piece.codes

    module, scheme = place.weight.removesuffix(".weight"), place.scheme
    placed = [writer.add_pieces(f"{module}.codes", codes(), ir.DataType.UINT8, place.codes_shape)]
    for part, arrays in rest.items():
        name = "scale_steps" if part == "steps" else part
        placed += [writer.add(f"{module}.{name}", place.joined(arrays))] if arrays else []
    found = {one.name.rpartition(".")[2]: one.tensor(WEIGHTS_NAME, writer.folder) for one in placed}
    stored = StoredMatrix(
        scheme, place.rows, place.inputs, found["codes"], found["scales"], found.get("zero_points"),
        steps=found.get("scale_steps"),
    )  # fmt: skip
    return stored, QuantizedTensor(
        name=place.weight, bits=scheme.bits, group_size=scheme.group_size, symmetric=scheme.symmetric, outliers=0,
        bytes=sum(one.length for one in placed), relative_error=error,
    )  # fmt: skip
