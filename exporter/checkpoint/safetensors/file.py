"""The header of a .safetensors file, checked before anything is allocated, and its tensors."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.bundle import json_codec
from runtime.errors import CheckpointError, UnsupportedError

from ..checkpoint import FloatArray, PackedTensor
from ..not_a_model import found_instead
from ..stored import BlockFormat, Bytes, FileRange, read_float32

MAX_HEADER_BYTES = 100_000_000  # the limit of the reference implementation

# Stored type to NumPy; bfloat16 and the 8-bit floats as unsigned bits.
DTYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "F8_E4M3": "u1", "F8_E5M2": "u1", "F8_E8M0": "u1",
    "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1",
    "BOOL": "?",
}  # fmt: skip
ITEM_BYTES = {name: np.dtype(stored).itemsize for name, stored in DTYPES.items()}


def _bfloat16(data: Bytes) -> FloatArray:
    wide = data.view("<u2").astype(np.uint32)
    wide <<= 16
    return wide.view(np.float32)


FLOATS = {
    "F64": BlockFormat(1, 8, lambda data: data.view("<f8").astype(np.float32)),
    "F32": BlockFormat(1, 4, lambda data: data.view("<f4")),
    "F16": BlockFormat(1, 2, lambda data: data.view("<f2").astype(np.float32)),
    "BF16": BlockFormat(1, 2, _bfloat16),
}


@dataclass(frozen=True)
class SafetensorsTensor:
    """One tensor of a .safetensors file."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    range: FileRange

    def read(self) -> FloatArray:
        """The values in float32."""
        where = f"{self.range.path.name}: {self.name}"
        form = FLOATS.get(self.dtype)
        if form is None:
            raise UnsupportedError(f"{where}: stored as {self.dtype}; readable as weights are {', '.join(FLOATS)}.")
        return read_float32(self.range, self.shape, form, where)

    def packed(self) -> PackedTensor | None:
        """None: plain values have no codes."""
        return None

    def rows(self, start: int, stop: int) -> "SafetensorsTensor":
        """Rows [start, stop) as a tensor of their own."""
        size = self.range.size // self.shape[0]
        part = FileRange(self.range.path, self.range.offset + start * size, (stop - start) * size)
        return replace(self, shape=(stop - start, *self.shape[1:]), range=part)

    def matrix(self, index: int) -> "SafetensorsTensor":
        """One entry of the first dimension."""
        part = self.rows(index, index + 1)
        return replace(part, shape=part.shape[1:])

    def raw(self) -> npt.NDArray[Any]:
        """The stored numbers, as `DTYPES` says."""
        return self.range.read().view(DTYPES[self.dtype]).reshape(self.shape)


def read_safetensors(path: Path) -> dict[str, SafetensorsTensor]:
    """The tensors of one file, by stored name; reads the header only.

    Raises:
        CheckpointError: truncated, or a header that does not describe this file.
    """
    try:
        size = path.stat().st_size
        text = _read_header(path, size)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    try:
        header = json_codec.loads(text.decode())
    except ValueError as error:
        raise CheckpointError(f"{path}: the header is not JSON: {error}. Download the file again.") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{path}: the header is not a JSON object.")
    start = 8 + len(text)
    tensors = [_parse_entry(name, entry, start, path) for name, entry in header.items() if name != "__metadata__"]
    _require_tiling(tensors, start, size, path)
    return {tensor.name: tensor for tensor in tensors}


def _read_header(path: Path, size: int) -> bytes:
    with path.open("rb") as file:
        prefix = file.read(8)
        if len(prefix) < 8:
            advice = found_instead(path) or " Download it again."
            raise CheckpointError(f"{path}: {size} bytes are too few for a safetensors file.{advice}")
        length = int.from_bytes(prefix, "little")
        if length > min(MAX_HEADER_BYTES, size - 8):
            raise CheckpointError(
                f"{path}: states a header of {length} bytes in a file of {size}: truncated, or not "
                f"safetensors.{found_instead(path) or ' Download the file again.'}"
            )
        return file.read(length)


def _parse_entry(name: str, entry: Any, start: int, path: Path) -> SafetensorsTensor:
    where = f"{path}: tensor {name!r}"
    try:
        dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    except (TypeError, KeyError, ValueError) as error:
        raise CheckpointError(f"{where}: the header must give dtype, shape and two data_offsets.") from error
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise UnsupportedError(f"{where}: dtype {dtype!r}; known are {', '.join(ITEM_BYTES)}.")
    if not all(type(number) is int and number >= 0 for number in (*shape, begin, end)):
        raise CheckpointError(f"{where}: shape and data_offsets must be integers of at least 0.")
    if end - begin != math.prod(shape) * ITEM_BYTES[dtype]:
        raise CheckpointError(f"{where}: {end - begin} bytes for {dtype} {list(shape)}; the header is damaged.")
    return SafetensorsTensor(name, shape, dtype, FileRange(path, start + begin, end - begin))


def _require_tiling(tensors: list[SafetensorsTensor], start: int, size: int, path: Path) -> None:
    """The format allows no holes and no overlaps; whatever breaks that is damage."""
    position = start
    for tensor in sorted(tensors, key=lambda tensor: (tensor.range.offset, tensor.range.size)):
        if tensor.range.offset != position:
            raise CheckpointError(f"{path}: tensor {tensor.name!r} does not start where the one before it ends.")
        position += tensor.range.size
    if position != size:
        raise CheckpointError(f"{path}: the tensors end at byte {position}, the file has {size}: download it again.")
