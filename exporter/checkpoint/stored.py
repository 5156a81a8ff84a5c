"""Plain arrays on disk to float32, a megabyte at a time.

Files are read, not mapped: a file that shrinks while it is read must be an error message and not a SIGBUS, and only the
result may occupy memory.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from runtime.errors import CheckpointError

from .checkpoint import FloatArray

CHUNK_BYTES = 1 << 20  # that are read at a time
_TILE_VALUES = 1 << 16  # that are decoded at a time: they stay in the cache of one core

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class FileRange:
    """`size` bytes of a file from `offset` on."""

    path: Path
    offset: int
    size: int

    def read(self, start: int = 0, stop: int | None = None) -> Bytes:
        """Bytes [start, stop) of the range."""
        wanted = (self.size if stop is None else stop) - start
        try:
            data = np.fromfile(self.path, np.uint8, wanted, offset=self.offset + start)
        except OSError as error:
            raise CheckpointError(f"{self.path}: cannot be read: {error}") from error
        if data.size != wanted:
            raise CheckpointError(f"{self.path}: ended while it was read; is something still writing it?")
        return data


@dataclass(frozen=True)
class BlockFormat:
    """How `block` consecutive values are stored in `bytes` bytes, and what turns them into float32.

    `decode` takes uint8 [rows, bytes] and returns float32 [rows, block].
    """

    block: int
    bytes: int
    decode: Callable[[Bytes], FloatArray]


def read_float32(source: FileRange, shape: tuple[int, ...], form: BlockFormat, where: str) -> FloatArray:
    """The whole tensor in float32; refuses NaN and infinity, naming `where`."""
    result = np.empty((source.size // form.bytes, form.block), np.float32)
    step = max(1, _TILE_VALUES // form.block)
    for first, _, data in chunks(source, form.bytes):
        for start in range(0, len(data), step):
            part = result[first + start : first + min(start + step, len(data))]
            with np.errstate(all="ignore"):  # NaN and infinity get their own message below
                part[...] = form.decode(data[start : start + step])
            require_finite(part, where)
    return result.reshape(shape)


def chunks(source: FileRange, block_bytes: int) -> Iterator[tuple[int, int, Bytes]]:
    """Blocks [start, stop) at a time, as uint8 [stop - start, block_bytes]."""
    blocks, step = source.size // block_bytes, max(1, CHUNK_BYTES // block_bytes)
    for start in range(0, blocks, step):
        stop = min(start + step, blocks)
        yield start, stop, source.read(start * block_bytes, stop * block_bytes).reshape(stop - start, block_bytes)


def require_finite(values: FloatArray, where: str) -> None:
    """Refuse NaN and infinity."""
    if values.size and not (np.isfinite(values.min()) and np.isfinite(values.max())):  # NaN wins both
        kind = "NaN" if np.isnan(values).any() else "infinite"
        raise CheckpointError(f"{where}: holds {kind} values; the checkpoint is broken. Download or convert it again.")
