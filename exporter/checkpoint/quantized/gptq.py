"""GPTQ: codes packed along the inputs, zero points along the outputs, both in int32 words.

weight[n, k] = (code[k, n] - zero[group[k], n]) * scale[group[k], n]
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from runtime.errors import CheckpointError, UnsupportedError

from ..checkpoint import FloatArray, PackedTensor, TensorSource
from ..safetensors.file import SafetensorsTensor
from .codes import storable, to_scales, unpack
from .matrices import Settings, Stored, others, stems


@dataclass(frozen=True)
class GptqMatrix:
    """One matrix [N, K]. `index` is the group of every input; `offset` is what the stored zero points lack."""

    name: str
    bits: int
    offset: int
    words: SafetensorsTensor
    zeros: SafetensorsTensor
    scales: SafetensorsTensor
    index: SafetensorsTensor | None

    def __post_init__(self) -> None:
        groups, outputs = self.scales.shape
        if (
            self.words.dtype != "I32"
            or self.words.shape[1] != outputs
            or self.zeros.shape != (groups, outputs * self.bits // 32)
        ):
            raise ValueError(f"the shapes of {self.name}'s qweight, qzeros and scales do not fit together")
        if self.index is not None and self.index.shape != self.shape[1:]:
            raise ValueError(f"{self.name} has {self.shape[1]} inputs, but its g_idx {list(self.index.shape)}")

    @property
    def shape(self) -> tuple[int, ...]:
        """[N, K]."""
        return self.words.shape[1], self.words.shape[0] * 32 // self.bits

    @property
    def dtype(self) -> str:
        """For messages."""
        return f"GPTQ {self.bits}-bit with act-order" if self.is_scattered else f"GPTQ {self.bits}-bit"

    @cached_property
    def is_scattered(self) -> bool:
        """Whether inputs of one group do not lie beside each other, as no operator can store them."""
        return not np.array_equal(self.groups(), np.arange(self.shape[1]) // self.group_size)

    @property
    def group_size(self) -> int:
        """Inputs per group."""
        return -(-self.shape[1] // self.scales.shape[0])

    def read(self) -> FloatArray:
        """The values in float32."""
        packed, groups = self._grouped(), self.groups()
        assert packed.zero_points is not None
        zeros = packed.zero_points.astype(np.float32)
        return (packed.codes - zeros[:, groups]) * packed.scales[:, groups]

    def packed(self) -> PackedTensor | None:
        """The codes, unless the groups are scattered over the inputs (act-order)."""
        if self.is_scattered:
            return None
        return storable(self._grouped())

    def groups(self) -> npt.NDArray[np.int32]:
        """Group of every input, [K]."""
        inputs, count = self.shape[1], self.scales.shape[0]
        groups = np.arange(inputs, dtype=np.int32) // self.group_size if self.index is None else self.index.raw()
        if groups.min() < 0 or groups.max() >= count:
            raise CheckpointError(f"{self.name}: g_idx names a group outside of the {count} stored ones.")
        return groups

    def _grouped(self) -> PackedTensor:
        """Codes in stored order of the inputs; the group of an input is what `groups` says."""
        codes = np.ascontiguousarray(unpack(self.words.raw().T, self.bits))
        zeros = unpack(self.zeros.raw(), self.bits).T + np.uint8(self.offset)
        zeros &= np.uint8((1 << self.bits) - 1)
        scales = to_scales(self.scales.read().T, self.name)
        return PackedTensor(codes, scales, np.ascontiguousarray(zeros), self.bits, self.group_size)


def combine(stored: Stored, settings: Settings) -> dict[str, TensorSource]:
    """`X.qweight`, `X.qzeros`, `X.scales` and `X.g_idx` become `X.weight`."""
    version = settings.get("checkpoint_format", "gptq")
    if version not in ("gptq", "gptq_v2"):
        raise UnsupportedError(f"quantization_config: checkpoint_format {version!r}; supported are gptq and gptq_v2.")
    offset = 1 if version == "gptq" else 0  # version 1 stores zero points minus one
    result = others(stored, ".qweight", ".qzeros", ".scales", ".g_idx")
    for stem in stems(stored, ".qweight"):
        words, zeros, scales = (stored[f"{stem}.{part}"] for part in ("qweight", "qzeros", "scales"))
        index, bits = stored.get(f"{stem}.g_idx"), _bits(stem, stored, settings)
        result[f"{stem}.weight"] = GptqMatrix(f"{stem}.weight", bits, offset, words, zeros, scales, index)
    return result


def _bits(stem: str, stored: Stored, settings: Settings) -> int:
    """As the group index says, since `dynamic` settings differ between modules; else as the settings say."""
    index = stored.get(f"{stem}.g_idx")
    bits = int(settings["bits"]) if index is None else stored[f"{stem}.qweight"].shape[0] * 32 // index.shape[0]
    if bits not in (2, 3, 4, 8):
        raise UnsupportedError(f"{stem}: {bits}-bit GPTQ; supported are 2, 3, 4 and 8.")
    return bits
