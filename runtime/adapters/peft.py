"""A PEFT folder of a LoRA adapter, read without PEFT: plain low-rank factors, and nothing else, are accepted."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import CheckpointError, UnsupportedError

Matrix = npt.NDArray[np.float32]
_MERGE = "Merge it into a bundle of its own: onnxlm export CHECKPOINT --lora DIR."
_TENSOR = re.compile(r"base_model\.model\.model\.layers\.(\d+)\.(\w+)\.(\w+_proj)\.lora_([AB])(?:\.\w+)?\.weight")
_READ = frozenset({"r", "lora_alpha", "use_rslora", "peft_type", "init_lora_weights", "rank_pattern", "alpha_pattern"})
# How the adapter was trained; the tensors hold the result.
_TRAINING = frozenset(
    """
    auto_mapping base_model_name_or_path corda_config eva_config exclude_modules inference_mode layers_pattern
    layers_to_transform loftq_config lora_dropout lora_ga_config megatron_config megatron_core peft_version
    qalora_group_size revision runtime_config target_modules task_type velora_config
    """.split()  # noqa: SIM905
)
_OFF: tuple[Any, ...] = (None, False, [], {}, "", "none")
_WHOLE_BASE = (True, False, None, "gaussian", "eva", "orthogonal")
_TYPES: Mapping[str, str] = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_MAX_HEADER = 100 << 20


@dataclass(frozen=True)
class Adapter:
    """The factors of one adapter: by layer and module, such as (3, "self_attn.q_proj"), A `[r, in]` and B `[out, r]`.

    B is multiplied by the adapter's scale already.
    """

    name: str
    factors: Mapping[tuple[int, str], tuple[Matrix, Matrix]]


def read_adapter(name: str, folder: Path) -> Adapter:
    """Read adapter_config.json and adapter_model.safetensors.

    Raises:
        CheckpointError: a file is missing or broken.
        UnsupportedError: the adapter is more than low-rank factors of linear layers; says what to do instead.
    """
    config = _config(folder / "adapter_config.json")
    tensors = _tensors(folder / "adapter_model.safetensors")
    pairs: dict[tuple[int, str], dict[str, Matrix]] = {}
    for key, tensor in tensors.items():
        match = _TENSOR.fullmatch(key)
        if match is None:
            raise UnsupportedError(
                f"{folder}: the tensor {key!r} is no factor of a linear layer of a decoder. {_MERGE}"
            )
        layer, block, module, factor = match.groups()
        pairs.setdefault((int(layer), f"{block}.{module}"), {})[factor] = tensor
    if not pairs:
        raise CheckpointError(f"{folder}: adapter_model.safetensors holds no factors.")
    return Adapter(name, {place: _scaled(folder, config, place, pair) for place, pair in pairs.items()})


def _config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path}: cannot be read ({error}). A LoRA adapter is a folder as PEFT saves it."
        ) from error
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        raise UnsupportedError(f"{path}: peft_type must be LORA.")
    for key, value in config.items():
        if key not in _READ | _TRAINING and value not in _OFF:
            raise UnsupportedError(f"{path}: {key} = {value!r} cannot be served beside other adapters. {_MERGE}")
    for key in ("rank_pattern", "alpha_pattern"):
        if config.get(key):
            raise UnsupportedError(f"{path}: {key} cannot be served beside other adapters. {_MERGE}")
    if config.get("init_lora_weights", True) not in _WHOLE_BASE:
        raise UnsupportedError(f"{path}: init_lora_weights {config['init_lora_weights']!r} changed the base. {_MERGE}")
    return config


def _scaled(
    folder: Path, config: Mapping[str, Any], place: tuple[int, str], pair: Mapping[str, Matrix]
) -> tuple[Matrix, Matrix]:
    where = f"{folder}: layer {place[0]}, {place[1]}"
    if pair.keys() != {"A", "B"}:
        raise CheckpointError(f"{where}: only factor {next(iter(pair))} is there.")
    a, b = pair["A"], pair["B"]
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if a.ndim != 2 or b.ndim != 2 or a.shape[0] != rank or b.shape[1] != rank:
        raise CheckpointError(f"{where}: factors {list(a.shape)} and {list(b.shape)} are not of rank r = {rank!r}.")
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not math.isfinite(alpha):
        raise CheckpointError(f"{folder}: lora_alpha is {alpha!r}, not a number.")
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise CheckpointError(f"{where}: the factors hold NaN or infinity.")
    scale = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
    return a, (b * np.float32(scale)).astype(np.float32)


def _tensors(path: Path) -> dict[str, Matrix]:
    """All tensors of a safetensors file in float32: the length of a JSON header, the header, and the data."""
    try:
        content = path.read_bytes()
        size = int.from_bytes(content[:8], "little")
        if len(content) < 8 or size > min(_MAX_HEADER, len(content) - 8):
            raise ValueError("the header is cut off")
        header, data = json.loads(content[8 : 8 + size]), memoryview(content)[8 + size :]
        return {name: _tensor(about, data) for name, about in header.items() if name != "__metadata__"}
    except UnsupportedError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"{path}: cannot be read as a safetensors file ({error}). Save the adapter again."
        ) from error


def _tensor(about: Mapping[str, Any], data: memoryview) -> Matrix:
    kind = about["dtype"]
    if kind not in _TYPES:
        raise UnsupportedError(f"factors in {kind} are not supported; supported: {', '.join(_TYPES)}.")
    start, stop = about["data_offsets"]
    stored = np.frombuffer(data[start:stop], _TYPES[kind]).reshape(about["shape"])
    if kind == "BF16":
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float32)
