"""What the exporter needs to know of a source model, whatever format it comes in."""

import hashlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
CodeArray = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class PackedTensor:
    """A matrix stored as integers, in the terms of the MatMulNBits operator. Stacked matrices are one tall matrix.

    weight[n, k] = (codes[n, k] - zero_points[n, k // group_size]) * scales[n, k // group_size]

    Args:
        codes: uint8 [N, K], values below 2**bits, one code a byte (not yet packed).
        scales: float32 [N, ceil(K / group_size)].
        zero_points: uint8 [N, ceil(K / group_size)], or None for 2**(bits - 1) everywhere.
        bits: 2, 4 or 8 to be `storable`.
        group_size: a power of two from 16 on to be `storable`.
        transposed: the tensor itself is [K, N].
    """

    codes: CodeArray
    scales: FloatArray
    zero_points: CodeArray | None
    bits: int
    group_size: int
    transposed: bool = False

    @property
    def storable(self) -> bool:
        """MatMulNBits can hold it as it is."""
        size = self.group_size
        return self.bits in (2, 4, 8) and size >= 16 and size & (size - 1) == 0

    def select(self, rows: npt.NDArray[np.integer]) -> "PackedTensor":
        """The given rows, in the given order."""
        zero_points = None if self.zero_points is None else self.zero_points[rows]
        return replace(self, codes=self.codes[rows], scales=self.scales[rows], zero_points=zero_points)

    def dequantize(self) -> FloatArray:
        """The matrix in float32 [N, K]."""
        columns = self.codes.shape[1]
        group = np.arange(columns) // self.group_size
        zero = np.float32(1 << (self.bits - 1)) if self.zero_points is None else self.zero_points[:, group]
        return (self.codes - np.asarray(zero, np.float32)) * self.scales[:, group]


class TensorSource(Protocol):
    """One tensor of a checkpoint, still on disk. Reading it never reads another."""

    @property
    def name(self) -> str:
        """Hugging Face name, or the stored name where there is none."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape in the Hugging Face layout: [out, in] for linear layers."""

    @property
    def dtype(self) -> str:
        """Stored type, for messages: "BF16", "Q4_1", ..."""

    def read(self) -> FloatArray:
        """The values in float32, C-contiguous, freshly allocated.

        Raises:
            CheckpointError: the file changed, or the tensor holds NaN or infinity.
            UnsupportedError: the stored type has no float32 reading.
        """

    def packed(self) -> PackedTensor | None:
        """The same values as codes and scales where the stored form maps to them exactly, else None."""


@runtime_checkable
class Sliced(Protocol):
    """A tensor whose rows may be readable without the others."""

    def rows(self, start: int, stop: int) -> "TensorSource | None":
        """Rows [start, stop) as a tensor of their own, or None where they are not stored one behind the other."""


@runtime_checkable
class Stacked(Protocol):
    """A tensor [E, ...] whose matrices may be readable without the others."""

    def matrix(self, index: int) -> "TensorSource | None":
        """One entry of the first dimension, without that dimension, or None where it cannot be read alone."""


@dataclass(frozen=True)
class Renamed:
    """A tensor that stands in for another: an adapter's whole tensor, or a head as the embedding."""

    name: str
    source: TensorSource

    @property
    def shape(self) -> tuple[int, ...]:
        """As stored."""
        return self.source.shape

    @property
    def dtype(self) -> str:
        """For messages."""
        return self.source.dtype

    def read(self) -> FloatArray:
        """The values in float32."""
        return self.source.read()

    def packed(self) -> PackedTensor | None:
        """As stored."""
        return self.source.packed()

    def rows(self, start: int, stop: int) -> TensorSource | None:
        """Those of the tensor, where it has any."""
        return self.source.rows(start, stop) if isinstance(self.source, Sliced) else None

    def matrix(self, index: int) -> TensorSource | None:
        """That of the tensor, where it has any."""
        return self.source.matrix(index) if isinstance(self.source, Stacked) else None


@dataclass(frozen=True)
class Checkpoint:
    """A source model: configuration, weights on disk and tokenizer files.

    Args:
        name: what a person calls it.
        format: "safetensors", "gguf" or "module".
        config: the keys of Hugging Face's config.json, of the text model (built from metadata for GGUF).
        generation_config: the keys of generation_config.json, or empty.
        tensors: by Hugging Face name.
        tokenizer_files: file name to content, to be written into the bundle as they are.
        files: what `sha256` hashes.
        revision: commit of a hub repository, where known.
        licence: as the checkpoint states it, where it does.
        keep: what must live as long as the tensors, such as a temporary folder.
        path: the folder or file that was opened, where there is one.
        warnings: what a user should know of how it was read.
        pooling: how an embedding model makes one vector of a text's, where the file of weights says it.
    """

    name: str
    format: str
    config: Mapping[str, Any]
    generation_config: Mapping[str, Any]
    tensors: Mapping[str, TensorSource]
    tokenizer_files: Mapping[str, bytes] = field(default_factory=dict)
    files: tuple[Path, ...] = ()
    revision: str | None = None
    licence: str | None = None
    keep: object = None
    path: Path | None = None
    warnings: tuple[str, ...] = ()
    pooling: str | None = None

    @cached_property
    def sha256(self) -> str | None:
        """Hash of the one weight file, or of the sorted list of the shards' hashes. Reads every byte, once."""
        if not self.files:
            return None
        with ThreadPoolExecutor(max_workers=4) as pool:
            digests = sorted(pool.map(file_sha256, self.files))
        return digests[0] if len(digests) == 1 else hashlib.sha256("\n".join(digests).encode()).hexdigest()


def file_sha256(path: Path) -> str:
    """Hash of one file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
