"""compressed-tensors: packed integers, int8 and 8-bit floats, with scales per tensor, row, group or block."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from runtime.errors import UnsupportedError

from ..checkpoint import CodeArray, FloatArray, PackedTensor, TensorSource
from ..safetensors.file import SafetensorsTensor
from . import fp8
from .codes import storable, to_scales, unpack
from .matrices import Settings, Stored, others, stems

FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized")
ENDINGS = (".weight_packed", ".weight_scale", ".weight_zero_point", ".weight_g_idx", ".weight_shape")
ACTIVATIONS = (".input_scale", ".input_zero_point", ".output_scale", ".k_scale", ".v_scale")


@dataclass(frozen=True)
class CompressedMatrix:
    """One matrix [N, K] of integers; `words` holds int32 words of `bits`-bit codes, or int8 values."""

    name: str
    shape: tuple[int, ...]
    bits: int
    words: SafetensorsTensor
    scales: SafetensorsTensor
    zeros: SafetensorsTensor | None

    def __post_init__(self) -> None:
        outputs, inputs = self.shape
        width = inputs if self.words.dtype == "I8" else -(-inputs * self.bits // 32)
        if self.words.shape != (outputs, width) or self.bits not in (2, 3, 4, 8):
            raise ValueError(f"{self.name}: {list(self.words.shape)} words for {self.bits}-bit {list(self.shape)}")
        if self.scales.shape[:1] not in ((outputs,), (1,)):
            raise ValueError(f"{self.name}: scales {list(self.scales.shape)} for {outputs} outputs")

    @property
    def dtype(self) -> str:
        """For messages."""
        return f"compressed {self.bits}-bit"

    def read(self) -> FloatArray:
        """The values in float32."""
        return self._load().dequantize()

    def packed(self) -> PackedTensor | None:
        """The codes."""
        return storable(self._load())

    def _load(self) -> PackedTensor:
        outputs, inputs = self.shape
        scales = self.scales.read().reshape(self.scales.shape[0], -1)
        scales = to_scales(np.broadcast_to(scales, (outputs, scales.shape[1])), self.name)
        group = -(-inputs // scales.shape[1])
        return PackedTensor(self._codes(), scales, self._zero_points(scales.shape[1]), self.bits, group)

    def _codes(self) -> CodeArray:
        if self.words.dtype == "I8":
            return self.words.raw().view(np.uint8) ^ np.uint8(128)  # value + 128
        return np.ascontiguousarray(unpack(self.words.raw(), self.bits)[:, : self.shape[1]])

    def _zero_points(self, groups: int) -> CodeArray | None:
        if self.zeros is None:
            return None
        stored, outputs = self.zeros.raw(), self.shape[0]
        if self.zeros.dtype == "I32":  # packed along the outputs
            codes = unpack(stored.reshape(stored.shape[0], -1).T, self.bits).T[:outputs]
        else:
            codes = (stored.reshape(stored.shape[0], -1).astype(np.int16) + (1 << (self.bits - 1))).astype(np.uint8)
        return np.ascontiguousarray(np.broadcast_to(codes, (outputs, groups)))


def combine(stored: Stored, settings: Settings) -> dict[str, TensorSource]:
    """`X.weight_packed` and its companions, or `X.weight` with `X.weight_scale`, become `X.weight`."""
    form = settings.get("format", "")
    groups = list(settings["config_groups"].values())
    forms = {group.get("format") or form for group in groups}
    if not forms <= set(FORMATS):
        raise UnsupportedError(f"quantization_config: format {form!r}; supported are {', '.join(FORMATS)}.")
    _require_no_reordering(stored)
    result = others(stored, *ENDINGS, *ACTIVATIONS)
    for stem in stems(stored, ".weight_scale"):
        result[f"{stem}.weight"] = _matrix(stem, stored, [group["weights"] for group in groups])
    return result


def _require_no_reordering(stored: Stored) -> None:
    for stem in stems(stored, ".weight_g_idx"):
        index = stored[f"{stem}.weight_g_idx"].raw()
        if (np.diff(index) < 0).any():
            raise UnsupportedError(f"{stem}: actorder 'group' scatters its groups over the inputs; not supported.")


def _matrix(stem: str, stored: Stored, schemes: list[dict[str, Any]]) -> TensorSource:
    scales, name = stored[f"{stem}.weight_scale"], f"{stem}.weight"
    if name in stored and stored[name].dtype.startswith("F8"):
        blocks = [scheme["block_structure"] for scheme in schemes if scheme.get("block_structure")]
        return fp8.Fp8Tensor(stored[name], scales, blocks[0] if blocks else (1, 1))
    zeros = stored.get(f"{stem}.weight_zero_point")
    if name in stored:
        return CompressedMatrix(name, stored[name].shape, 8, stored[name], scales, zeros)
    words = stored[f"{stem}.weight_packed"]
    outputs, inputs = (int(size) for size in stored[f"{stem}.weight_shape"].raw())
    return CompressedMatrix(name, (outputs, inputs), _bits(words, inputs, schemes), words, scales, zeros)


def _bits(words: SafetensorsTensor, inputs: int, schemes: list[dict[str, Any]]) -> int:
    """The one of the schemes' widths that the words have: which scheme a module has is a matter of name patterns."""
    widths = sorted({int(scheme["num_bits"]) for scheme in schemes})
    return next((bits for bits in widths if -(-inputs * bits // 32) == words.shape[1]), widths[0])
