"""Tensors of one layer that Hugging Face has as one: gate and up of experts, the halves of a latent projection."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..checkpoint import FloatArray, PackedTensor
from .config import Keys
from .orders import Index
from .tensor import GgufTensor

GATE_UP = ("ffn_gate_exps.weight", "ffn_up_exps.weight")  # of experts


@dataclass(frozen=True)
class Joined:
    """How parts become one.

    Args:
        parts: GGUF names within a layer, with their ending.
        how: "stacked" one behind the other, or "interleaved" entry by entry.
        axis: of the rows; 1 for experts [E, out, in], 0 for a matrix.
        transposed: the result is [.., in, out].
        turned: parts that are stored [.., in, out] themselves.
        flat: the first two dimensions of the result become one.
        order: of the rows of a result of axis 0, from their number.
    """

    parts: tuple[str, ...]
    how: Literal["stacked", "interleaved"] = "stacked"
    axis: int = 1
    transposed: bool = False
    turned: tuple[str, ...] = ()
    flat: bool = False
    order: Callable[[Keys, int], Index] | None = None


@dataclass(frozen=True)
class JoinedTensor:
    """Several stored tensors as one."""

    name: str
    parts: Sequence[GgufTensor]
    joined: Joined
    order: Index | None = field(default=None, compare=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """In the Hugging Face layout."""
        size = list(self._stacked_shape)
        if self.joined.transposed:
            size[-2:] = size[:-3:-1]
        return (size[0] * size[1], *size[2:]) if self.joined.flat else tuple(size)

    @property
    def dtype(self) -> str:
        """The block formats."""
        return " + ".join(dict.fromkeys(part.dtype for part in self.parts))

    def read(self) -> FloatArray:
        """The values in float32, in the Hugging Face layout."""
        values = self._read_in_place() if self._in_stored_order else self._join([part.read() for part in self.parts])
        if self.joined.transposed:
            values = values.swapaxes(-1, -2)
        return np.ascontiguousarray(values).reshape(self.shape)

    @property
    def _in_stored_order(self) -> bool:
        return self.joined.how == "stacked" and self.order is None

    def _read_in_place(self) -> FloatArray:
        """One part at a time is in memory beside the result."""
        shape, first = self._stacked_shape, 0
        values = np.empty(shape, np.float32)
        into = np.moveaxis(values, self.joined.axis, 0)
        for part in self.parts:
            rows = part.shape[self.joined.axis]
            into[first : first + rows] = np.moveaxis(part.read(), self.joined.axis, 0)
            first += rows
        return values

    @property
    def _stacked_shape(self) -> tuple[int, ...]:
        """Before it is transposed and made flat."""
        size = list(self.parts[0].shape)
        size[self.joined.axis] = sum(part.shape[self.joined.axis] for part in self.parts)
        return tuple(size)

    def rows(self, start: int, stop: int) -> "GgufTensor | JoinedTensor | None":
        """Rows [start, stop) of a matrix, where they are stored one behind the other."""
        if self.joined.axis or self.joined.transposed or self.joined.flat or not self._in_stored_order:
            return None
        found, first = [], 0
        for part in self.parts:
            begin, end = max(start - first, 0), min(stop - first, part.shape[0])
            if begin < end:
                found.append(part.rows(begin, end))
            first += part.shape[0]
        rows = [part for part in found if part is not None]
        if len(rows) < len(found):
            return None
        return rows[0] if len(rows) == 1 else replace(self, parts=rows)

    def matrix(self, index: int) -> "JoinedTensor | None":
        """One entry of the first dimension: of each part, where it is the same in all."""
        parts = [part.matrix(index) for part in self.parts]
        found = [part for part in parts if part is not None]
        if self.joined.axis == 0 or self.joined.flat or len(found) < len(parts):
            return None
        return replace(self, parts=found, joined=replace(self.joined, axis=self.joined.axis - 1))

    def packed(self) -> PackedTensor | None:
        """The codes as [.. · out, in], where all parts have codes of one kind."""
        found = [part.packed() for part in self.parts]
        packed = [part for part in found if part is not None]
        kinds = {(part.bits, part.group_size, part.zero_points is None) for part in packed}
        if len(packed) < len(found) or len(kinds) > 1 or self.joined.turned:
            return None
        codes = self._join([self._rows(part.codes, i) for i, part in enumerate(packed)])
        scales = self._join([self._rows(part.scales, i) for i, part in enumerate(packed)])
        codes, scales = codes.reshape(-1, codes.shape[-1]), scales.reshape(-1, scales.shape[-1])
        return replace(packed[0], codes=codes, scales=scales, transposed=self.joined.transposed)

    def _rows(self, matrix: npt.NDArray[Any], part: int) -> npt.NDArray[Any]:
        """Codes or scales [.. · out, G] with the leading dimensions of their part."""
        return matrix.reshape(*self.parts[part].shape[:-1], -1)

    def _join(self, values: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        axis = self.joined.axis
        if self.joined.how == "stacked":
            rows = np.concatenate(values, axis)
            return rows if self.order is None else rows[self.order]
        both = np.stack(values, axis + 1)
        return both.reshape(*both.shape[:axis], -1, *both.shape[axis + 2 :])
