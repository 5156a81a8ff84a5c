"""A GGUF file as a checkpoint: configuration from its metadata, tensors under their Hugging Face names."""

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from exporter.tokenizer_gguf import gguf_tokenizer_files
from runtime.errors import CheckpointError, UnsupportedError

from . import gguf_names
from .checkpoint import Checkpoint, TensorSource
from .gguf_config import Keys
from .gguf_families import DENSE
from .gguf_family import GgufFamily
from .gguf_file import GgufFile, GgufTensorInfo
from .gguf_joined import Joined, JoinedTensor
from .gguf_moe import EXPERTS
from .gguf_split import read_all_parts
from .gguf_tensor import GgufTensor, Heads, entry_of, rows_of
from .gguf_tokens import special_ids

FAMILIES = {**DENSE, **EXPERTS}


def open_gguf(path: Path) -> Checkpoint:
    """Open a GGUF file, or any part of a split one; reads the headers only.

    Raises:
        CheckpointError: truncated, damaged or contradictory.
        UnsupportedError: another architecture, or tensors that are not known.
    """
    file, paths = read_all_parts(path)
    keys = Keys(file, _architecture(file))
    family = _variant(FAMILIES[keys.architecture], keys)
    config = {"model_type": family.model_type, **family.config(keys)}  # a config may know the type better
    ids = special_ids(file.metadata)
    return Checkpoint(
        name=str(file.metadata.get("general.name") or path.stem),
        format="gguf",
        config={**config, **ids},
        generation_config=ids,
        tensors=_tensors(file, family, keys),
        tokenizer_files=gguf_tokenizer_files(file.metadata, str(path)),
        files=paths,
        licence=_text_or_none(file.metadata.get("general.license")),
    )


def _architecture(file: GgufFile) -> str:
    name = file.metadata.get("general.architecture")
    if not isinstance(name, str):
        raise CheckpointError(f"{file.path}: metadata general.architecture is missing; this is not a model.")
    if name not in FAMILIES:
        raise UnsupportedError(f"{file.path}: architecture {name!r}; supported are {', '.join(sorted(FAMILIES))}.")
    return name


def _variant(family: GgufFamily, keys: Keys) -> GgufFamily:
    """Some architectures stand for two families."""
    if keys.architecture == "llama" and keys.get("expert_count"):
        return FAMILIES["mixtral"]
    if family.model_type == "granitemoe" and keys.get("expert_shared_feed_forward_length"):
        return replace(family, model_type="granitemoeshared")
    if family.model_type == "falcon" and keys.has("blk.0.attn_norm_2.weight"):
        return replace(family, names=gguf_names.FALCON_40B)
    if family.model_type == "olmo2" and keys.get("attention.sliding_window"):
        return replace(family, model_type="olmo3")
    return family


def _tensors(file: GgufFile, family: GgufFamily, keys: Keys) -> dict[str, TensorSource]:
    tensors: dict[str, TensorSource] = {}
    parts = {part for joined in family.joined.values() for part in joined.parts}
    for info in file.tensors.values():
        if gguf_names.NOT_WEIGHTS.search(info.name) or _is_extra_layer(info.name, keys.layers):
            continue
        if re.sub(r"^blk\.\d+\.", "", info.name) not in parts:
            tensors |= {tensor.name: tensor for tensor in _translated(info, family, keys)}
    for pattern, joined in family.joined.items():
        found = (_joined(pattern.replace("{}", str(layer)), joined, layer, file) for layer in range(keys.layers))
        tensors |= {tensor.name: tensor for tensor in found if tensor is not None}
    return tensors


def _joined(name: str, joined: Joined, layer: int, file: GgufFile) -> JoinedTensor | None:
    """The tensor in parts, or None in a layer that has none of them."""
    stored = {part: file.tensors.get(f"blk.{layer}.{part}") for part in joined.parts}
    infos = {part: info for part, info in stored.items() if info is not None}
    if not infos:
        return None
    missing = [part for part in joined.parts if part not in infos]
    if missing:
        raise CheckpointError(
            f"{file.path}: tensor blk.{layer}.{missing[0]} is missing beside blk.{layer}.{next(iter(infos))}."
        )
    parts = [GgufTensor(name, info, transposed=part in joined.turned) for part, info in infos.items()]
    return JoinedTensor(name, parts, joined)


def _is_extra_layer(name: str, layers: int) -> bool:
    """Layers that predict further tokens are stored behind the decoder's own."""
    match = re.match(r"blk\.(\d+)\.", name)
    return match is not None and int(match.group(1)) >= layers


def _translated(info: GgufTensorInfo, family: GgufFamily, keys: Keys) -> Iterator[GgufTensor]:
    names = gguf_names.hugging_face_names(info.name, family.names)
    if not names:
        raise UnsupportedError(f"{keys.file.path}: tensor {info.name!r} is not known for {family.model_type}.")
    stem = re.sub(r"^blk\.\d+\.", "", info.name).rsplit(".", 1)[0]
    if stem in family.squeezed:
        info = _unsqueezed(info, family.squeezed[stem])
    shift = family.norm_shift if info.name.endswith("norm.weight") else 0.0
    transposed = stem in family.transposed and info.name.endswith(".weight")
    heads = _heads(info, stem, keys) if stem in family.orders or len(names) > 1 else None
    order = family.orders[stem](heads) if heads and stem in family.orders else None
    for name, part in zip(names, _row_parts(info, heads if len(names) > 1 else None), strict=True):
        if "{e}" not in name:
            yield GgufTensor(name, part, order, transposed, shift)
            continue
        for index in range(part.shape[0]):
            yield GgufTensor(name.replace("{e}", str(index)), entry_of(part, index), None, transposed, shift)


def _unsqueezed(info: GgufTensorInfo, axis: int) -> GgufTensorInfo:
    """With the dimension of one that converters may drop."""
    if len(info.shape) > 2 or info.shape[axis : axis + 1] == (1,):
        return info
    return replace(info, shape=(*info.shape[:axis], 1, *info.shape[axis:]))


def _row_parts(info: GgufTensorInfo, heads: Heads | None) -> list[GgufTensorInfo]:
    """The tensor itself, or its rows cut into q, k and v."""
    if heads is None:
        return [info]
    ends = [0, heads.queries, heads.queries + heads.keys, heads.queries + 2 * heads.keys]
    return [rows_of(info, start * heads.size, stop * heads.size) for start, stop in pairwise(ends)]


def _heads(info: GgufTensorInfo, stem: str, keys: Keys) -> Heads:
    """The heads by the metadata, which must explain the rows of this tensor."""
    queries = keys.integer("attention.head_count")
    heads = Heads(queries, keys.integer("attention.head_count_kv", queries), keys.head_dim)
    if heads.rows(stem) != info.shape[0] or heads.size % 2 or heads.queries % heads.keys:
        raise CheckpointError(
            f"{keys.file.path}: tensor {info.name!r} has {info.shape[0]} rows, which do not fit the metadata: "
            f"{heads.queries} query heads and {heads.keys} key heads of size {heads.size}."
        )
    return heads


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
