"""A Hugging Face folder: config.json, weights in one file or many, tokenizer files."""

import json
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from exporter.tokenizer.folder import folder_tokenizer_files
from models.families.defaults import complete_config, complete_text_config
from models.families.registry import require_family
from runtime.errors import CheckpointError

from ..checkpoint import Checkpoint
from ..generation import generation_settings, require_ids
from ..names import text_model_tensors
from ..not_a_model import found_instead, other_weights
from ..pickled import convert_pickles, find_pickles, require_indexed
from ..quantized.matrices import combine_quantized
from .file import SafetensorsTensor, read_safetensors

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
GENERATION = "generation_config.json"


def open_folder(folder: Path) -> Checkpoint:
    """Open a Hugging Face folder; reads configuration and headers, no weights.

    Raises:
        CheckpointError: a file is missing or broken.
        UnsupportedError: a quantization or a tokenizer that is not supported.
    """
    outer = read_json(folder / "config.json")
    config = text_config(outer, folder / "config.json")
    require_family(config.get("model_type"), folder / "config.json")
    pickles = [] if (folder / INDEX).is_file() or (folder / SINGLE).is_file() else find_pickles(folder)
    scratch = convert_pickles(pickles) if pickles else None
    stored, notes = (_read_pickled(folder, scratch.path), []) if scratch else _read_shards(folder)
    settings = config.pop("quantization_config", None) or config.pop("compression_config", None)
    if "quantization" in config and not any(name.endswith(".scales") for name in stored):
        del config["quantization"]  # MLX's, of a file that has floats only
    tensors = combine_quantized(stored, settings, str(folder)) if settings else stored
    defaults, unused = generation_settings(folder / GENERATION)
    files, told = folder_tokenizer_files(folder)
    if defaults:
        files[GENERATION] = json.dumps(defaults, indent=1).encode()
    require_ids(config, folder / "config.json")
    return Checkpoint(
        name=folder.resolve().name,
        format="safetensors",
        config=config,
        generation_config=defaults,
        tensors=text_model_tensors(tensors, config, nested="text_config" in outer),
        tokenizer_files=files,
        files=tuple(pickles or sorted({tensor.range.path for tensor in stored.values()})),
        licence=_licence(folder),
        keep=scratch,
        warnings=(*notes, *unused, *told),
    )


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; config.json may hold Infinity, so this is Python's JSON and not the strict one."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_no_duplicates)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: missing. Download the whole model folder.") from error
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON: {error}.{found_instead(path)}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: must hold a JSON object.")
    return value


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        seen = [key for key, _ in pairs]
        twice = next(key for key in seen if seen.count(key) > 1)
        raise ValueError(f"the key {twice!r} is there twice, and only one of its values can count")
    return result


def text_config(outer: Mapping[str, Any], where: Path) -> dict[str, Any]:
    """The text model's config and its class's defaults: `text_config`, if any, and what only the outer level states."""
    inner = outer.get("text_config")
    if inner is None:
        return complete_config(outer)
    if not isinstance(inner, dict):
        raise CheckpointError(f"{where}: text_config must be an object.")
    shared = ("tie_word_embeddings", "bos_token_id", "eos_token_id", "pad_token_id", "quantization_config")
    stated = {key: outer[key] for key in shared if key in outer} | inner
    return complete_text_config(stated, outer.get("model_type"))


def _read_shards(folder: Path) -> tuple[dict[str, SafetensorsTensor], list[str]]:
    """The tensors, and what a user should know. A single file wins over an index, as in transformers."""
    index = folder / INDEX
    if (folder / SINGLE).is_file():
        tensors = read_safetensors(folder / SINGLE)
        return tensors, _compare_with_index(index, tensors) if index.is_file() else []
    if index.is_file():
        return _read_indexed(folder, index), []
    others = sorted(path.name for path in folder.glob("*.safetensors"))
    if len(others) == 1 and not others[0].startswith(("adapter", "consolidated")):
        return read_safetensors(folder / others[0]), []
    found = f" It holds {', '.join(others)}." if others else ""
    raise CheckpointError(
        f"{folder}: no {SINGLE} and no {INDEX}.{found}{other_weights(folder)} Download the whole model folder."
    )


def _compare_with_index(index: Path, tensors: Mapping[str, SafetensorsTensor]) -> list[str]:
    weight_map = read_json(index).get("weight_map")
    if isinstance(weight_map, dict) and set(weight_map.values()) == {SINGLE} and weight_map.keys() <= tensors.keys():
        return []
    return [f"{index} is of other files, and not read: {SINGLE} holds the weights, as transformers reads this folder."]


def _read_pickled(folder: Path, converted: Path) -> dict[str, SafetensorsTensor]:
    """Every tensor of every converted file, each where the index says."""
    tensors: dict[str, SafetensorsTensor] = {}
    for path in sorted(converted.glob("*.safetensors")):
        for name, tensor in read_safetensors(path).items():
            if name in tensors:
                raise CheckpointError(
                    f"tensor {name!r} is in {tensors[name].range.path.stem}.bin and in {path.stem}.bin."
                )
            tensors[name] = tensor
    require_indexed(folder, {name: tensor.range.path.stem for name, tensor in tensors.items()})
    return tensors


def _read_indexed(folder: Path, index: Path) -> dict[str, SafetensorsTensor]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        raise CheckpointError(f"{index}: weight_map must map tensor names to file names.")
    tensors: dict[str, SafetensorsTensor] = {}
    for file in sorted(set(weight_map.values())):
        for name, tensor in _read_shard(folder, file).items():
            if name in tensors:
                raise CheckpointError(f"{folder}: tensor {name!r} is in {tensors[name].range.path.name} and in {file}.")
            tensors[name] = tensor
    for name, file in weight_map.items():
        if name not in tensors or tensors[name].range.path.name != PurePosixPath(file).name:
            raise CheckpointError(
                f"{index}: tensor {name!r} should be in {file}, but is not. Download that file again."
            )
    return tensors


def _read_shard(folder: Path, file: str) -> dict[str, SafetensorsTensor]:
    if PurePosixPath(file).is_absolute() or ".." in PurePosixPath(file).parts:
        raise CheckpointError(f"{folder / INDEX}: {file!r} is not a file of this folder.")
    if not (folder / file).is_file():
        raise CheckpointError(f"{folder / file}: this shard is named by {INDEX} and missing. Download it again.")
    return read_safetensors(folder / file)


def _licence(folder: Path) -> str | None:
    """`license:` of the front matter of README.md, where there is one."""
    try:
        head = (folder / "README.md").read_text(encoding="utf-8", errors="replace")[:20_000]
    except OSError:
        return None
    front = re.match(r"---\n(.*?)\n---", head, re.DOTALL)
    found = re.search(r"^license:[ \t]*(\S+)", front.group(1), re.MULTILINE) if front else None
    return found.group(1).strip("\"'") if found else None
