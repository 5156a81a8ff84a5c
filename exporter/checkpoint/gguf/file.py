"""The header of a GGUF file: metadata and tensor list, checked before anything is allocated.

The gguf package has a reader too. This one is stricter (a count is believed only if the file is long enough for it) and
ten times as fast, since it builds no array per string.
"""

import math
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from runtime.errors import CheckpointError, UnsupportedError

from ..not_a_model import found_instead
from ..stored import FileRange

# A header of short strings takes six times its size in Python. Real ones stay below 20 MB.
MAX_HEADER_BYTES = 128 << 20
MAX_DIMS = 4
VERSIONS = (2, 3)

# Value types of the format; 8 is a string, 9 an array.
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
_MANY_BYTES = 1 << 18


@dataclass(frozen=True)
class GgufTensorInfo:
    """Where one tensor is. `shape` is in Hugging Face order, [out, in] for linear layers."""

    name: str
    shape: tuple[int, ...]
    type: str
    range: FileRange


@dataclass(frozen=True)
class GgufFile:
    """Metadata (numeric arrays as NumPy arrays, other arrays as lists) and tensors by stored name."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensorInfo]


def read_gguf(path: Path) -> GgufFile:
    """Read the header; no tensor data.

    Raises:
        CheckpointError: truncated or damaged.
        UnsupportedError: another version or byte order, or a tensor type that is not known.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            return _read(_Header(file, path, size))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error


class _Header:
    """Reads forward, never past the end of the file or the size limit."""

    def __init__(self, file: BinaryIO, path: Path, size: int) -> None:
        self.file, self.path, self.size = file, path, size
        self.left = min(size, MAX_HEADER_BYTES)

    def fail(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {what}. The file is truncated or damaged; download it again.")

    def take(self, count: int) -> bytes:
        if count > self.left:
            raise self.fail(f"the header wants {count} bytes where {self.left} are left")
        self.left -= count
        data = self.file.read(count)
        if len(data) != count:
            raise self.fail("the file ended inside the header")
        return data

    def number(self, code: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def text(self) -> str:
        data = self.take(int.from_bytes(self.take(8), "little"))
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise self.fail("a string of the header is not UTF-8") from error

    def texts(self, count: int) -> list[str]:
        """Strings one behind the other: a vocabulary, which is why this reads many at a time."""
        result: list[str] = []
        data, at = b"", 0
        while len(result) < count:
            while (end := _end_of_text(data, at)) > len(data):  # the next one is not there whole
                self._give_back(len(data) - at)
                data, at = self.take(max(end - at, min(self.left, _MANY_BYTES))), 0
            try:
                result.append(data[at + 8 : end].decode())
            except UnicodeDecodeError as error:
                raise self.fail("a string of the header is not UTF-8") from error
            at = end
        self._give_back(len(data) - at)
        return result

    def _give_back(self, count: int) -> None:
        self.file.seek(-count, os.SEEK_CUR)
        self.left += count

    def count(self, item_bytes: int, what: str) -> int:
        count: int = self.number("Q")
        if count * item_bytes > self.left:
            raise self.fail(f"{count} {what} do not fit into the {self.left} bytes left")
        return count


def _end_of_text(data: bytes, at: int) -> int:
    """Where the string that begins at `at` ends, which may be behind what there is; its length comes first."""
    return at + 8 + int.from_bytes(data[at : at + 8], "little") if at + 8 <= len(data) else at + 8


def _read(header: _Header) -> GgufFile:
    _require_gguf(header)
    tensor_count = header.count(24, "tensors")
    metadata_count = header.count(13, "metadata entries")
    metadata: dict[str, Any] = {}
    for _ in range(metadata_count):
        key = header.text()
        if key in metadata:
            raise header.fail(f"metadata key {key!r} appears twice")
        metadata[key] = _value(header, header.number("I"), key)
    entries = [_tensor_entry(header) for _ in range(tensor_count)]
    start = _aligned(header.file.tell(), _alignment(metadata, header))
    return GgufFile(header.path, metadata, _located(entries, start, header))


def _require_gguf(header: _Header) -> None:
    if header.size < 24 or header.take(4) != b"GGUF":
        raise CheckpointError(f"{header.path}: not a GGUF file.{found_instead(header.path) or ' Download it again.'}")
    version = header.number("I")
    if version not in VERSIONS:
        kind = "big-endian" if version & 0xFFFF == 0 else f"version {version}"
        raise UnsupportedError(f"{header.path}: GGUF {kind}; supported are little-endian versions 2 and 3.")


def _value(header: _Header, kind: int, key: str) -> Any:
    if kind == STRING:
        return header.text()
    if kind == ARRAY:
        return _array(header, key)
    if kind not in SCALARS:
        raise header.fail(f"metadata {key!r} has the unknown type {kind}")
    value = header.number(SCALARS[kind])
    # The shortest decimal of a float32 is the number that its author wrote: 1e-05, not 9.99999974e-06.
    return float(str(np.float32(value))) if kind == 6 else value


def _array(header: _Header, key: str) -> Any:
    kind = header.number("I")
    if kind == STRING:
        return header.texts(header.count(8, f"strings in {key!r}"))
    if kind not in SCALARS:
        raise header.fail(f"metadata {key!r} is an array of the unknown type {kind}")
    dtype = np.dtype("<" + SCALARS[kind])
    count = header.count(dtype.itemsize, f"numbers in {key!r}")
    return np.frombuffer(header.take(count * dtype.itemsize), dtype)


def _tensor_entry(header: _Header) -> tuple[str, tuple[int, ...], int, int]:
    name, dims = header.text(), header.number("I")
    if not 1 <= dims <= MAX_DIMS:
        raise header.fail(f"tensor {name!r} has {dims} dimensions")
    shape = struct.unpack(f"<{dims}Q", header.take(8 * dims))
    return name, shape[::-1], header.number("I"), header.number("Q")


def _alignment(metadata: Mapping[str, Any], header: _Header) -> int:
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or not 1 <= alignment <= 1 << 20 or alignment & (alignment - 1):
        raise header.fail(f"general.alignment is {alignment!r}, not a power of two")
    return alignment


def _aligned(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment


def _located(
    entries: list[tuple[str, tuple[int, ...], int, int]], start: int, header: _Header
) -> dict[str, GgufTensorInfo]:
    tensors: dict[str, GgufTensorInfo] = {}
    for name, shape, type_id, offset in entries:
        if name in tensors:
            raise header.fail(f"tensor {name!r} appears twice")
        type_name, count = _stored_size(name, shape, type_id, header)
        if start + offset + count > header.size:
            raise header.fail(f"tensor {name!r} ends at byte {start + offset + count} of {header.size}")
        tensors[name] = GgufTensorInfo(name, shape, type_name, FileRange(header.path, start + offset, count))
    return tensors


def _stored_size(name: str, shape: tuple[int, ...], type_id: int, header: _Header) -> tuple[str, int]:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        kind = GGMLQuantizationType(type_id)
    except ValueError as error:
        raise UnsupportedError(f"{header.path}: tensor {name!r} has the unknown type {type_id}.") from error
    block, block_bytes = GGML_QUANT_SIZES[kind]
    if 0 in shape or shape[-1] % block:
        raise header.fail(f"tensor {name!r} of shape {list(shape)} is not made of {kind.name} blocks of {block}")
    return kind.name, math.prod(shape) // block * block_bytes
