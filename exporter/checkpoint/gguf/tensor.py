"""GGUF tensors as Hugging Face has them: rows put back, transposed, cut apart."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from ..checkpoint import FloatArray, PackedTensor
from ..stored import FileRange, read_float32
from .blocks import block_format
from .exact import read_packed
from .file import GgufTensorInfo
from .orders import Index

Function = Callable[[FloatArray], FloatArray]


@dataclass(frozen=True)
class GgufTensor:
    """One tensor, or a part of one.

    Args:
        name: Hugging Face name.
        info: what is stored.
        order: row j is stored row order[j]; None: as stored.
        transposed: the Hugging Face layout is [.., in, out].
        shift: added to every value, as of norms that are stored as 1 + w.
        columns: column j is stored column columns[j].
        function: applied to the values.
    """

    name: str
    info: GgufTensorInfo
    order: Index | None = field(default=None, compare=False)
    transposed: bool = False
    shift: float = 0.0
    columns: Index | None = field(default=None, compare=False)
    function: Function | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """In the Hugging Face layout."""
        shape = self.info.shape
        return (*shape[:-2], shape[-1], shape[-2]) if self.transposed else shape

    @property
    def dtype(self) -> str:
        """The block format."""
        return self.info.type

    @property
    def where(self) -> str:
        """File and stored name, for messages."""
        return f"{self.info.range.path.name}: {self.info.name}"

    def read(self) -> FloatArray:
        """The values in float32, in the Hugging Face layout."""
        values = read_float32(self.info.range, self.info.shape, block_format(self.dtype, self.where), self.where)
        if self.order is not None:
            values = values[self.order]
        if self.columns is not None:
            values = values[:, self.columns]
        if self.function is not None:
            values = self.function(values)
        if self.shift:
            values += np.float32(self.shift)
        return np.ascontiguousarray(values.swapaxes(-1, -2)) if self.transposed else values

    def rows(self, start: int, stop: int) -> "GgufTensor | None":
        """Rows [start, stop) as a tensor of their own, where they are stored one behind the other."""
        if self.order is not None or self.transposed or self.function is not None:
            return None
        return replace(self, info=rows_of(self.info, start, stop))

    def matrix(self, index: int) -> "GgufTensor | None":
        """One entry of the first dimension, where that is not in another order."""
        return (
            None
            if self.order is not None or self.columns is not None
            else replace(self, info=entry_of(self.info, index))
        )

    def packed(self) -> PackedTensor | None:
        """The stored codes as [out, in], where the block format maps to MatMulNBits exactly."""
        if self.shift or self.function is not None or self.columns is not None:
            return None
        packed = read_packed(self.info.range, self.info.shape, self.dtype, self.where)
        if packed is None:
            return None
        return replace(packed if self.order is None else packed.select(self.order), transposed=self.transposed)


def rows_of(info: GgufTensorInfo, start: int, stop: int) -> GgufTensorInfo:
    """Entries [start, stop) of the first dimension; blocks never cross it."""
    size = info.range.size // info.shape[0]
    part = FileRange(info.range.path, info.range.offset + start * size, (stop - start) * size)
    return replace(info, shape=(stop - start, *info.shape[1:]), range=part)


def entry_of(info: GgufTensorInfo, index: int) -> GgufTensorInfo:
    """One entry of the first dimension, without that dimension."""
    part = rows_of(info, index, index + 1)
    return replace(part, shape=part.shape[1:])
