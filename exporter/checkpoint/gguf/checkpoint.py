"""A GGUF file as a checkpoint: configuration from its metadata, tensors under their Hugging Face names."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from exporter.gc_pause import gc_paused
from exporter.tokenizer.gguf import gguf_tokenizer_files
from runtime.errors import CheckpointError, UnsupportedError

from ..checkpoint import Checkpoint, TensorSource
from .config import Keys
from .family import GgufFamily
from .file import GgufFile, GgufTensorInfo
from .joined import Joined, JoinedTensor
from .names import NOT_WEIGHTS, NameTable, derive_names
from .orders import read_heads, require_rows
from .registry import find_family, read_architecture
from .split import read_all_parts
from .tensor import GgufTensor, entry_of, rows_of
from .tokens import special_ids
from .unread import require_all_read, sampling_settings

# llama.cpp's llama_pooling_type by the names of sentence-transformers; -1 and 0 are none, and 4 is a head for scores.
POOLING = {1: "mean", 2: "cls", 3: "lasttoken"}


@gc_paused()
def open_gguf(path: Path) -> Checkpoint:
    """Open a GGUF file, or any part of a split one; reads the headers only.

    Raises:
        CheckpointError: truncated, damaged or contradictory.
        UnsupportedError: another architecture, or tensors that are not known.
    """
    file, paths = read_all_parts(path)
    keys = Keys(file, read_architecture(file))
    family = find_family(keys)
    config = {"model_type": family.model_type, **family.config(keys)}  # a config may know the type better
    tensors = _tensors(file, family, keys, _name_table(keys.architecture, family, config, path))
    pooling = file.metadata.get(f"{keys.architecture}.pooling_type")
    told = require_all_read(keys)
    sampling = sampling_settings(file.metadata, path)
    files = gguf_tokenizer_files(file.metadata, str(path))
    ids = special_ids(file.metadata, str(path))
    if sampling:
        files["generation_config.json"] = json.dumps({**ids, **sampling}, indent=1).encode()
    return Checkpoint(
        name=str(file.metadata.get("general.name") or path.stem),
        format="gguf",
        config={**config, **ids},
        generation_config={**ids, **sampling},
        tensors=tensors,
        tokenizer_files=files,
        files=paths,
        licence=_text_or_none(file.metadata.get("general.license")),
        warnings=tuple(told),
        pooling=POOLING.get(pooling) if isinstance(pooling, int) else None,
    )


def _name_table(architecture: str, family: GgufFamily, config: dict[str, Any], path: Path) -> NameTable:
    from models.families.registry import describe

    try:
        _, table = describe(config)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: the metadata, as a config.json, describes no model: {error}") from error
    weights = (name for source in table.values() for name in (*source.tensors, *source.otherwise))
    return NameTable(family.rows, derive_names(architecture, weights))


def _tensors(file: GgufFile, family: GgufFamily, keys: Keys, names: NameTable) -> dict[str, TensorSource]:
    tensors: dict[str, TensorSource] = {}
    parts = {part for joined in family.joined.values() for part in joined.parts}
    for info in file.tensors.values():
        if NOT_WEIGHTS.search(info.name) or _is_extra_layer(info.name, keys.layers):
            continue
        if re.sub(r"^blk\.\d+\.", "", info.name) not in parts:
            tensors |= {tensor.name: tensor for tensor in _translated(info, family, keys, names)}
    for pattern, joined in family.joined.items():
        found = (_joined(pattern.replace("{}", str(layer)), joined, layer, keys) for layer in range(keys.layers))
        tensors |= {tensor.name: tensor for tensor in found if tensor is not None}
    return tensors


def _joined(name: str, joined: Joined, layer: int, keys: Keys) -> JoinedTensor | None:
    """The tensor in parts, or None in a layer that has none of them."""
    stored = {part: keys.file.tensors.get(f"blk.{layer}.{part}") for part in joined.parts}
    infos = {part: info for part, info in stored.items() if info is not None}
    if not infos:
        return None
    missing = [part for part in joined.parts if part not in infos]
    if missing:
        raise CheckpointError(f"{keys.file.path}: blk.{layer} has {next(iter(infos))}, but no {missing[0]}.")
    parts = [GgufTensor(name, info, transposed=part in joined.turned) for part, info in infos.items()]
    rows = sum(info.shape[joined.axis] for info in infos.values())
    return JoinedTensor(name, parts, joined, None if joined.order is None else joined.order(keys, rows))


def _is_extra_layer(name: str, layers: int) -> bool:
    """Layers that predict further tokens are stored behind the decoder's own."""
    match = re.match(r"blk\.(\d+)\.", name)
    return match is not None and int(match.group(1)) >= layers


def _translated(info: GgufTensorInfo, family: GgufFamily, keys: Keys, names: NameTable) -> Iterator[GgufTensor]:
    found = names.find(info.name)
    if not found:
        raise UnsupportedError(f"{keys.file.path}: tensor {info.name!r} is not known for {family.model_type}.")
    inner = re.sub(r"^blk\.\d+\.", "", info.name)
    stem = re.sub(r"\.(weight|bias)$", "", inner)
    if inner in family.squeezed:
        info = _unsqueezed(info, family.squeezed[inner])
    shifted = info.name.endswith("norm.weight") and stem != "ssm_norm"  # that one is stored as it is in all families
    shift = family.norm_shift if shifted else 0.0
    transposed = stem in family.transposed and info.name.endswith(".weight")
    order = family.orders[stem](keys, info) if stem in family.orders else None
    columns = family.columns[stem](keys, info) if stem in family.columns else None
    function = family.functions.get(stem)
    for name, part in zip(found, _row_parts(info, len(found), keys), strict=True):
        if "{e}" not in name:
            yield GgufTensor(name, part, order, transposed, shift, columns, function)
            continue
        for index in range(part.shape[0]):
            yield GgufTensor(name.replace("{e}", str(index)), entry_of(part, index), None, transposed, shift)


def _unsqueezed(info: GgufTensorInfo, axis: int) -> GgufTensorInfo:
    """With the dimension of one that converters may drop."""
    if len(info.shape) > 2 or info.shape[axis : axis + 1] == (1,):
        return info
    return replace(info, shape=(*info.shape[:axis], 1, *info.shape[axis:]))


def _row_parts(info: GgufTensorInfo, count: int, keys: Keys) -> list[GgufTensorInfo]:
    """The tensor itself, or its rows cut into q, k and v."""
    if count == 1:
        return [info]
    heads = read_heads(keys)
    require_rows(info, heads, (heads.queries + 2 * heads.keys) * heads.size)
    ends = [0, heads.queries, heads.queries + heads.keys, heads.queries + 2 * heads.keys]
    return [rows_of(info, start * heads.size, stop * heads.size) for start, stop in pairwise(ends)]


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
