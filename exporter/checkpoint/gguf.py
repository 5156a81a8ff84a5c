"""A GGUF file as a checkpoint: configuration from its metadata, tensors under their Hugging Face names."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from exporter.tokenizer_gguf import gguf_tokenizer_files
from runtime.errors import CheckpointError, UnsupportedError

from .checkpoint import Checkpoint, FloatArray, PackedTensor
from .gguf_blocks import block_format
from .gguf_config import gguf_config
from .gguf_exact import read_packed
from .gguf_file import GgufFile, GgufTensorInfo, read_gguf
from .gguf_names import FAMILIES, NOT_WEIGHTS, GgufFamily, hugging_face_name
from .gguf_tokens import special_ids
from .stored import read_float32

Number = TypeVar("Number", bound=np.generic)


@dataclass(frozen=True)
class GgufTensor:
    """One tensor of a GGUF file. `heads`: the rows are stored for interleaved rotation of that many heads."""

    name: str
    info: GgufTensorInfo
    heads: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """[out, in]."""
        return self.info.shape

    @property
    def dtype(self) -> str:
        """The block format."""
        return self.info.type

    def read(self) -> FloatArray:
        """The values in float32, rows in Hugging Face order."""
        values = read_float32(self.info.range, self.shape, block_format(self.dtype, self.where), self.where)
        return values if self.heads is None else _unpermuted(values, self.heads)

    def packed(self) -> PackedTensor | None:
        """The stored codes, where the block format maps to MatMulNBits exactly."""
        packed = read_packed(self.info.range, self.shape, self.dtype, self.where)
        if packed is None or self.heads is None:
            return packed
        return packed.select(_unpermuted(np.arange(self.shape[0]), self.heads))

    @property
    def where(self) -> str:
        """File and stored name, for messages."""
        return f"{self.info.range.path.name}: {self.info.name}"


def open_gguf(path: Path) -> Checkpoint:
    """Open a GGUF file; reads the header only.

    Raises:
        CheckpointError: truncated, damaged or contradictory.
        UnsupportedError: another architecture, or tensors that are not known.
    """
    file = read_gguf(path)
    family = _family(file)
    config = gguf_config(file, family)
    ids = special_ids(file.metadata)
    return Checkpoint(
        name=str(file.metadata.get("general.name") or path.stem),
        format="gguf",
        config={**config, **ids},
        generation_config=ids,
        tensors=_tensors(file, family, config),
        tokenizer_files=gguf_tokenizer_files(file.metadata, str(path)),
        files=(path,),
        licence=_text_or_none(file.metadata.get("general.license")),
    )


def _family(file: GgufFile) -> GgufFamily:
    name = file.metadata.get("general.architecture")
    if not isinstance(name, str):
        raise CheckpointError(f"{file.path}: metadata general.architecture is missing; this is not a model.")
    if name not in FAMILIES:
        raise UnsupportedError(f"{file.path}: architecture {name!r}; supported are {', '.join(sorted(FAMILIES))}.")
    if file.metadata.get("split.count", 1) not in (0, 1):
        raise UnsupportedError(f"{file.path}: one part of a split model; join the parts with gguf-split --merge.")
    return FAMILIES[name]


def _tensors(file: GgufFile, family: GgufFamily, config: dict[str, Any]) -> dict[str, GgufTensor]:
    tensors = {}
    for info in file.tensors.values():
        if NOT_WEIGHTS.search(info.name):
            continue
        name = hugging_face_name(info.name, family.names)
        if name is None:
            raise UnsupportedError(f"{file.path}: tensor {info.name!r} is not known for {family.model_type}.")
        tensors[name] = GgufTensor(name, info, _permuted_heads(info, family, config, file))
    return tensors


def _permuted_heads(info: GgufTensorInfo, family: GgufFamily, config: dict[str, Any], file: GgufFile) -> int | None:
    match = re.search(r"\.attn_([qk])\.(weight|bias)$", info.name)
    if not family.permuted or match is None:
        return None
    heads: int = config["num_attention_heads" if match.group(1) == "q" else "num_key_value_heads"]
    if info.shape[0] % (2 * heads):
        raise CheckpointError(f"{file.path}: tensor {info.name!r} has {info.shape[0]} rows for {heads} heads.")
    return heads


def _unpermuted(values: npt.NDArray[Number], heads: int) -> npt.NDArray[Number]:
    """Rows of each head from pairs (2i, 2i+1) to halves (i, i + D/2)."""
    pairs = values.reshape(heads, values.shape[0] // heads // 2, 2, -1)
    return pairs.swapaxes(1, 2).reshape(values.shape)


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
