"""A matrix some rows at a time, where its stored form allows it: a token table need not be in memory whole."""

from collections.abc import Iterator
from typing import Protocol

from .checkpoint import FloatArray, Sliced, TensorSource

BLOCK_VALUES = 1 << 21


class Rows(Protocol):
    """Consecutive rows of a tensor, or the whole tensor, still on disk."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of these rows."""

    def read(self) -> FloatArray:
        """Their values in float32."""


def row_blocks(source: TensorSource, values: int | None = None) -> Iterator[Rows]:
    """A matrix `[rows, columns]` as blocks of at most `values` values, in order."""
    if len(source.shape) != 2 or not isinstance(source, Sliced):
        yield source
        return
    rows, columns = source.shape
    step = max(1, (values or BLOCK_VALUES) // columns)
    for start in range(0, rows, step):
        part = source.rows(start, min(start + step, rows))
        if part is None:
            yield source
            return
        yield part
