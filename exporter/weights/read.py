"""From checkpoint tensors to the initializers' values, some rows at a time: what is read never lies in memory whole."""

import math
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from quantizer.parallel import parallel_map, threads
from runtime.errors import CheckpointError

from ..checkpoint.row_blocks import Rows, row_blocks
from .plan import as_out_in
from .stacks import slices

if TYPE_CHECKING:
    from .plan import Weight

_BLOCK_VALUES = 1 << 20  # of one thread at a time: in the cache of its core
_TILE = 512  # rows

Array = npt.NDArray[Any]


def weight_pieces(weight: "Weight") -> Iterator[Array]:
    """The initializer's values one behind the other, in as small pieces as its orientation allows.

    1. A stack of matrices: those of each matrix.
    2. Rows that lie as they are stored: blocks of rows.
    3. All else: everything at once.
    """
    if weight.plan.stacked:
        for part in slices(weight):
            yield from weight_pieces(part)
    elif _in_stored_order(weight):
        yield from parallel_map(partial(_values, block, weight) for block, _ in _blocks(weight))
    else:
        yield load_weight(weight)


def working_bytes(weight: "Weight") -> int:
    """Most bytes of memory that `weight_pieces` takes: the piece, and the blocks that are being read for it."""
    if weight.plan.stacked:
        one = next(slices(weight), weight)
        written = 0 if _in_stored_order(one) else one.nbytes  # the matrix before it, until the next one is there
        return max(map(working_bytes, slices(weight)), default=0) + written
    if weight.plan.computed is not None:
        return weight.nbytes
    blocks = sorted(4 * math.prod(block.shape) for block, _ in _blocks(weight))
    piece = 0 if _in_stored_order(weight) else weight.nbytes
    return piece + 2 * sum(blocks[-threads() - 1 :])  # each as stored and decoded


def load_weight(weight: "Weight") -> Array:
    """The initializer's values, in its shape and type."""
    plan = weight.plan
    if plan.computed is not None:
        return _cast(plan.computed, weight)
    result = np.zeros(weight.shape, weight.dtype.numpy())
    if plan.stacked:
        for matrix, part in zip(result, slices(weight), strict=True):
            _fill(matrix, part)
    else:
        _fill(result, weight)
    return result


def target_rows(weight: "Weight") -> npt.NDArray[np.int64]:
    """Row of the graph's matrix for each row of the stack, as stored."""
    count = sum(as_out_in(weight, source.shape)[0] for source in weight.sources)
    rows = np.arange(count) if weight.plan.rows is None else weight.plan.rows
    if weight.order is None:
        return rows
    ordered = np.empty_like(rows)
    ordered[weight.order] = rows
    return ordered


def _in_stored_order(weight: "Weight") -> bool:
    plan = weight.plan
    if plan.computed is not None or plan.transposed or plan.columns is not None or len(weight.shape) != 2:
        return False
    rows = target_rows(weight)
    return len(rows) == weight.shape[0] and bool((rows == np.arange(len(rows))).all())


def _fill(result: Array, weight: "Weight") -> None:
    canvas = result.T if weight.plan.transposed else result  # a view in the checkpoint's orientation
    rows = target_rows(weight)
    tasks = (partial(_place, canvas, block, rows[first:], weight) for block, first in _blocks(weight))
    for _ in parallel_map(tasks):
        pass


def _blocks(weight: "Weight") -> Iterator[tuple[Rows, int]]:
    """Parts of the stored tensors that can be read by themselves, and the number of their first row in the stack."""
    first = 0
    for source in weight.sources:
        if weight.stored == "out_in" and not weight.each_head:
            for block in row_blocks(source, _BLOCK_VALUES):
                yield block, first
                first += block.shape[0]
        else:
            yield source, first
            first += as_out_in(weight, source.shape)[0]


def _values(block: Rows, weight: "Weight") -> Array:
    """A block as it is stored in weights.bin, but for its place."""
    values = block.read()
    values = values.T if weight.stored == "in_out" else values.reshape(as_out_in(weight, block.shape))
    plan = weight.plan
    if plan.scale != 1 or plan.offset != 0:
        values = values * np.float32(plan.scale) + np.float32(plan.offset)
    return _cast(values, weight)


def _place(canvas: Array, block: Rows, rows: npt.NDArray[np.int64], weight: "Weight") -> None:
    """Copy tile by tile: a transposed copy of a whole matrix would miss the cache at every element."""
    values, columns = _values(block, weight), weight.plan.columns
    for start in range(0, len(values), _TILE):
        tile = values[start : start + _TILE]
        target = rows[start : start + len(tile)]
        if columns is None:
            canvas[_compact(target)] = tile
        else:
            canvas[target[:, None], columns] = tile


def _compact(rows: npt.NDArray[np.int64]) -> Any:
    """The rows as a slice where they follow each other, which copies several times as fast."""
    first, last = int(rows[0]), int(rows[-1])
    consecutive = last - first == len(rows) - 1 and bool((np.diff(rows) == 1).all())
    return slice(first, last + 1) if consecutive else rows


def _cast(values: npt.NDArray[np.float32], weight: "Weight") -> Array:
    kind = weight.dtype.numpy()
    if kind == np.float32:
        return values
    largest = float(np.abs(values).max(initial=0))
    if kind == np.float16 and largest > np.finfo(np.float16).max:
        raise CheckpointError(f"{weight.name} holds {largest:g}, which float16 cannot: export with --dtype bfloat16.")
    return values.astype(kind)
