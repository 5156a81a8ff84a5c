"""AWQ: 4-bit codes in int32 words, packed along the outputs in an order of their own (gemm) or along the inputs (gemv).

weight[n, k] = (code - zero) * scale, with the true zero point stored.
"""

from dataclasses import dataclass

import numpy as np

from runtime.errors import UnsupportedError

from ..checkpoint import CodeArray, FloatArray, PackedTensor, TensorSource
from ..safetensors.file import SafetensorsTensor
from .codes import storable, to_scales, unpack
from .matrices import Settings, Stored, others, stems

# Where column j of a word's eight is found among its nibbles.
GEMM_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)


@dataclass(frozen=True)
class AwqMatrix:
    """One matrix [N, K]."""

    name: str
    version: str
    group_size: int
    words: SafetensorsTensor
    zeros: SafetensorsTensor
    scales: SafetensorsTensor

    def __post_init__(self) -> None:
        outputs, inputs = self.shape
        groups = -(-inputs // self.group_size)
        stored = self.scales.shape if self.version == "gemm" else self.scales.shape[::-1]
        if stored[1] != outputs or stored[0] < groups or (self.version == "gemm" and stored[0] != groups):
            raise ValueError(f"{self.name}: scales {list(self.scales.shape)} for {groups} groups of {outputs} outputs")

    @property
    def shape(self) -> tuple[int, ...]:
        """[N, K]."""
        rows, words = self.words.shape
        return (8 * words, rows) if self.version == "gemm" else (rows, 8 * words)

    @property
    def dtype(self) -> str:
        """For messages."""
        return "AWQ 4-bit"

    def read(self) -> FloatArray:
        """The values in float32."""
        return self._load().dequantize()

    def packed(self) -> PackedTensor | None:
        """The codes."""
        return storable(self._load())

    def _load(self) -> PackedTensor:
        scales = self.scales.read()
        if self.version == "gemm":
            codes, zeros, scales = _gemm(self.words), _gemm(self.zeros), scales.T
        else:  # groups are padded to whole words
            groups = -(-self.shape[1] // self.group_size)
            codes, zeros = unpack(self.words.raw(), 4), unpack(self.zeros.raw(), 4)[:, :groups]
            scales = scales[:, :groups]
        zeros = np.ascontiguousarray(zeros)
        return PackedTensor(codes, to_scales(scales, self.name), zeros, 4, self.group_size)


def _gemm(tensor: SafetensorsTensor) -> CodeArray:
    nibbles = unpack(tensor.raw(), 4)
    ordered = nibbles.reshape(nibbles.shape[0], -1, 8)[..., list(GEMM_ORDER)]
    return np.ascontiguousarray(ordered.reshape(nibbles.shape).T)


def combine(stored: Stored, settings: Settings) -> dict[str, TensorSource]:
    """`X.qweight`, `X.qzeros` and `X.scales` become `X.weight`."""
    version = str(settings.get("version", "gemm")).lower()
    if version not in ("gemm", "gemv") or settings.get("bits", settings.get("w_bit", 4)) != 4:
        raise UnsupportedError(
            f"quantization_config: AWQ version {version!r}, bits {settings.get('bits')!r}; "
            "supported are gemm and gemv, 4 bits."
        )
    result = others(stored, ".qweight", ".qzeros", ".scales")
    for stem in stems(stored, ".qweight"):
        parts = [stored[f"{stem}.{part}"] for part in ("qweight", "qzeros", "scales")]
        inputs = parts[0].shape[0] if version == "gemm" else 8 * parts[0].shape[1]
        size = int(settings.get("group_size", settings.get("q_group_size", 128)))
        result[f"{stem}.weight"] = AwqMatrix(f"{stem}.weight", version, size if size > 0 else inputs, *parts)
    return result
