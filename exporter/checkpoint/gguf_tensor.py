"""GGUF tensors as Hugging Face has them: rows put back, transposed, cut apart."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .checkpoint import FloatArray, PackedTensor
from .gguf_blocks import block_format
from .gguf_exact import read_packed
from .gguf_file import GgufTensorInfo
from .stored import FileRange, read_float32

Index = npt.NDArray[np.int64]


class Heads(NamedTuple):
    """Number of query heads, of key/value heads, and their size."""

    queries: int
    keys: int
    size: int

    def rows(self, stem: str) -> int:
        """How many rows attn_q, attn_k or attn_qkv has."""
        return {"attn_q": self.queries, "attn_k": self.keys}.get(stem, self.queries + 2 * self.keys) * self.size


RowOrder = Callable[[Heads], Index]


@dataclass(frozen=True)
class GgufTensor:
    """One tensor, or a part of one.

    Args:
        name: Hugging Face name.
        info: what is stored.
        order: row j is stored row order[j]; None: as stored.
        transposed: the Hugging Face layout is [.., in, out].
        shift: added to every value, as of norms that are stored as 1 + w.
    """

    name: str
    info: GgufTensorInfo
    order: Index | None = field(default=None, compare=False)
    transposed: bool = False
    shift: float = 0.0

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
        if self.shift:
            values += np.float32(self.shift)
        return np.ascontiguousarray(values.swapaxes(-1, -2)) if self.transposed else values

    def packed(self) -> PackedTensor | None:
        """The stored codes as [out, in], where the block format maps to MatMulNBits exactly."""
        packed = None if self.shift else read_packed(self.info.range, self.info.shape, self.dtype, self.where)
        return packed if packed is None or self.order is None else packed.select(self.order)


def rows_of(info: GgufTensorInfo, start: int, stop: int) -> GgufTensorInfo:
    """Entries [start, stop) of the first dimension; blocks never cross it."""
    size = info.range.size // info.shape[0]
    part = FileRange(info.range.path, info.range.offset + start * size, (stop - start) * size)
    return replace(info, shape=(stop - start, *info.shape[1:]), range=part)


def entry_of(info: GgufTensorInfo, index: int) -> GgufTensorInfo:
    """One entry of the first dimension, without that dimension."""
    part = rows_of(info, index, index + 1)
    return replace(part, shape=part.shape[1:])


def half_from_pairs(heads: int, size: int) -> Index:
    """Undo the converter's order for interleaved rotation: rows of a head from (2i, 2i+1) to (i, i + D/2)."""
    return np.arange(heads * size).reshape(heads, size // 2, 2).swapaxes(1, 2).reshape(-1)


def grouped_qkv(heads: Heads) -> Index:
    """From q | k | v back to `[its query heads, k, v]` per key/value head (Falcon; GPT-NeoX and BLOOM: per head)."""
    group = heads.queries // heads.keys
    rows = np.arange((heads.queries + 2 * heads.keys) * heads.size)
    q, k, v = np.split(rows, np.cumsum([heads.queries, heads.keys])[:2] * heads.size)
    parts = (part.reshape(heads.keys, count, heads.size) for part, count in ((q, group), (k, 1), (v, 1)))
    return np.concatenate(list(parts), axis=1).reshape(-1)
