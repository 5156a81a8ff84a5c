"""weights.bin: read one tensor at a time, write one tensor at a time. Exports and quantized bundles have one writer."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from runtime.errors import BundleError, IntegrityError

from .streaming_hash import StreamingHash

WEIGHTS_NAME = "weights.bin"
ALIGNMENT = 4096  # a page: what memory mapping needs
SMALL = 1 << 16  # below this a page of padding would cost more than mapping saves
SMALL_ALIGNMENT = 64


@dataclass(frozen=True)
class Placed:
    """Where a tensor lies in weights.bin."""

    name: str
    offset: int
    length: int
    dtype: ir.DataType
    shape: tuple[int, ...]

    def tensor(self, location: str, folder: Path) -> ir.ExternalTensor:
        """The external tensor that a graph stores for it."""
        return ir.ExternalTensor(
            location, self.offset, self.length, self.dtype, shape=ir.Shape(self.shape), name=self.name, base_dir=folder
        )


@dataclass(frozen=True)
class Layout:
    """The file to be: its tensors in order, with the bytes of those that stay as they are."""

    lengths: dict[str, int]

    def size(self, replaced: Mapping[str, Sequence[int]]) -> int:
        """Bytes of the file when some tensors are replaced by several of these lengths, alignment included."""
        end = 0
        for name, length in self.lengths.items():
            for part in replaced.get(name, (length,)):
                end += -end % _alignment(part) + part
        return end


class WeightsWriter:
    """Appends arrays to weights.bin; a name is written once, however many graphs use it.

    Args:
        path: the file; a new one, or with `append` one that is there.
        append: go on behind the end of the file.
    """

    def __init__(self, path: Path, *, append: bool = False) -> None:
        self.placed: dict[str, Placed] = {}
        self.folder = path.parent
        self._path = path
        self._file = path.open("ab" if append else "wb")
        self._hash = StreamingHash(path)

    def __enter__(self) -> "WeightsWriter":
        self._hash.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()
        self._hash.__exit__(kind, error, at)

    @property
    def sha256(self) -> str:
        """Of the whole file, once the block is left; computed beside the writing.

        Raises:
            BundleError: the file could not be read.
        """
        return self._hash.sha256

    def add(self, name: str, array: npt.NDArray[Any], dtype: ir.DataType | None = None) -> Placed:
        """Write `array` at the next aligned offset; `dtype` is given where numpy has no such type (bfloat16)."""
        return self.add_pieces(name, [array], dtype or ir.DataType.from_numpy(array.dtype), array.shape)

    def add_pieces(
        self, name: str, pieces: Iterable[npt.NDArray[Any]], dtype: ir.DataType, shape: tuple[int, ...]
    ) -> Placed:
        """Write the pieces of one tensor, which is never in memory whole; where one cannot be made, none is left."""
        assert name not in self.placed
        length = math.prod(shape) * int(dtype.itemsize)
        offset = self._align(length)
        try:
            for piece in pieces:
                self._write(np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data)
        except BaseException:
            self._take_back(offset)
            raise
        assert self._file.tell() == offset + length
        with self._translated():
            self._file.flush()
        self._hash.advance(offset + length)
        self.placed[name] = Placed(name, offset, length, dtype, shape)
        return self.placed[name]

    def _align(self, length: int) -> int:
        missing = -self._file.tell() % _alignment(length)
        self._write(bytes(missing))
        return self._file.tell()

    def _take_back(self, end: int) -> None:
        with suppress(OSError):  # whoever asked for the pieces is told what went wrong with them
            self._file.seek(end)
            self._file.truncate()

    def _write(self, data: Any) -> None:
        with self._translated():
            self._file.write(data)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise BundleError(f"{self._path}: cannot be written ({error.strerror}).") from error


def _alignment(length: int) -> int:
    return SMALL_ALIGNMENT if length < SMALL else ALIGNMENT


def read_part(tensor: ir.TensorProtocol, index: int) -> npt.NDArray[Any]:
    """One matrix of a stack, read as `read_tensor` reads the whole stack."""
    if not isinstance(tensor, ir.ExternalTensor):
        part: npt.NDArray[Any] = tensor.numpy()[index]
        return part
    shape = tensor.shape.numpy()[1:]
    nbytes = int(np.prod(shape, dtype=np.int64)) * int(tensor.dtype.itemsize)
    offset = (tensor.offset or 0) + index * nbytes
    return read_tensor(
        ir.ExternalTensor(
            tensor.location,
            offset,
            nbytes,
            tensor.dtype,
            shape=ir.Shape(shape),
            name=tensor.name or "",
            base_dir=tensor.base_dir,
        )
    )


def read_tensor(tensor: ir.TensorProtocol) -> npt.NDArray[Any]:
    """The array of an initializer, read into memory of its own: nothing stays mapped or cached afterwards."""
    if not isinstance(tensor, ir.ExternalTensor):
        return tensor.numpy()
    kind = tensor.dtype.numpy()
    count = int(np.prod(tensor.shape.numpy(), dtype=np.int64))
    path = Path(tensor.path)
    try:
        array = np.fromfile(path, kind, count, offset=tensor.offset or 0)
    except OSError as error:
        raise IntegrityError(f"{path}: cannot be read ({error.strerror}).") from error
    if array.size != count:
        raise IntegrityError(f"{path}: {tensor.name} lies beyond the end of the file. Copy the bundle again.")
    return array.reshape(tensor.shape.numpy())
