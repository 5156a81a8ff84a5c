"""Initializers that are stacks of matrices, one for each expert or head: matched and written matrix by matrix."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..checkpoint.checkpoint import Stacked

if TYPE_CHECKING:
    from ..checkpoint import TensorSource
    from .plan import Weight


def slices(weight: "Weight") -> "Iterator[Weight]":
    """Each matrix of the stack as a weight of its own.

    1. Each matrix has its own tensors: they are named one matrix behind the other.
    2. One tensor holds all of them: `[E, ...]`, or `[E * rows, in]`, whose rows may have an order.

    A tensor of the second kind whose matrices cannot be read one by one is read once, and is in memory as long as this
    iterator is.
    """
    count = weight.shape[0]
    one = replace(weight, shape=weight.shape[1:], plan=replace(weight.plan, stacked=False))
    if len(weight.sources) > 1:
        each = len(weight.sources) // count
        for i in range(count):
            yield replace(one, sources=weight.sources[i * each : (i + 1) * each])
        return
    whole = _Whole(weight.sources[0], count, weight.order)
    order = weight.order if whole.is_stack else None
    for i in range(count):
        alone = weight.sources[0].matrix(i) if whole.is_stack and isinstance(weight.sources[0], Stacked) else None
        yield replace(one, sources=(alone or _Part(whole, i),), order=order)


@dataclass(frozen=True)
class _Whole:
    """A tensor that holds a stack."""

    source: "TensorSource"
    count: int
    order: npt.NDArray[np.int64] | None

    @property
    def is_stack(self) -> bool:
        return self.source.shape[0] == self.count

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one part."""
        rows, *rest = self.source.shape
        if self.is_stack:
            return tuple(rest)
        if self.order is not None:
            rows = len(self.order) if self.order.max() < rows else 0
        return (rows // self.count, *rest)

    @cached_property
    def values(self) -> npt.NDArray[np.float32]:
        values = self.source.read()
        if self.order is not None and not self.is_stack:
            values = values[self.order]
        return values.reshape(self.count, *self.shape)


@dataclass(frozen=True)
class _Part:
    """One matrix of a stack, as a tensor of its own."""

    whole: _Whole
    index: int

    @property
    def name(self) -> str:
        return self.whole.source.name

    @property
    def dtype(self) -> str:
        return self.whole.source.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.whole.shape

    def read(self) -> npt.NDArray[np.float32]:
        part: npt.NDArray[np.float32] = self.whole.values[self.index]
        return part

    def packed(self) -> Any:
        return None
