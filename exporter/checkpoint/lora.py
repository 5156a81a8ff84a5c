"""PEFT LoRA adapters, merged into the weights while they are read: W + scale * B @ A (Hu et al. 2021)."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from runtime.errors import CheckpointError, UnsupportedError

from .checkpoint import Checkpoint, FloatArray, PackedTensor, TensorSource
from .names import text_model_tensors
from .safetensors.file import SafetensorsTensor, read_safetensors
from .safetensors.folder import read_json

PREFIX = "base_model.model."
# Settings that change what is computed, and the values that mean "not used".
UNUSED = {
    "use_dora": (False, None),
    "bias": ("none", None),
    "alora_invocation_tokens": (None,),
    "layer_replication": (None,),
}


@dataclass(frozen=True)
class MergedTensor:
    """A weight with its low-rank change. `transposed`: stored [in, out]; the change is [out, in] all the same."""

    base: TensorSource
    down: SafetensorsTensor
    up: SafetensorsTensor
    scale: float
    transposed: bool

    def __post_init__(self) -> None:
        change = (self.up.shape[0], self.down.shape[1])
        expected = change[::-1] if self.transposed else change
        if self.base.shape != expected or self.up.shape[1] != self.down.shape[0]:
            factors = f"{list(self.up.shape)} @ {list(self.down.shape)}"
            raise CheckpointError(f"LoRA for {self.name}: {factors} does not fit {list(self.base.shape)}.")

    @property
    def name(self) -> str:
        """Name of the weight."""
        return self.base.name

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the weight."""
        return self.base.shape

    @property
    def dtype(self) -> str:
        """For messages."""
        return f"{self.base.dtype} + LoRA"

    def read(self) -> FloatArray:
        """The merged values in float32."""
        change = self.up.read() @ self.down.read()
        change *= np.float32(self.scale)
        return np.ascontiguousarray(self.base.read() + (change.T if self.transposed else change))

    def packed(self) -> PackedTensor | None:
        """None: merged values are not on the grid any more."""
        return None


def merge_lora(checkpoint: Checkpoint, adapter: Path) -> Checkpoint:
    """The checkpoint with an adapter merged in.

    Args:
        checkpoint: the base model.
        adapter: folder with adapter_config.json and adapter_model.safetensors.

    Raises:
        CheckpointError: the adapter is for another model, or incomplete.
        UnsupportedError: another kind of adapter than plain LoRA.
    """
    config = read_json(adapter / "adapter_config.json")
    _require_plain_lora(config, adapter)
    file = adapter / "adapter_model.safetensors"
    if not file.is_file():
        raise CheckpointError(f"{file}: missing. An adapter folder holds adapter_config.json and {file.name}.")
    stored = read_safetensors(file)
    tensors = dict(checkpoint.tensors)
    for name, tensor in _whole(stored).items():
        tensors[_target(name, checkpoint, adapter)] = tensor
    for name, (down, up) in _pairs(stored, adapter).items():
        target = _target(name, checkpoint, adapter)
        transposed = "lora_embedding" in down.name or bool(config.get("fan_in_fan_out"))
        tensors[target] = MergedTensor(tensors[target], down, up, _scale(name, down, config), transposed)
    return replace(checkpoint, tensors=tensors, name=f"{checkpoint.name} + {adapter.resolve().name}")


def _require_plain_lora(config: Mapping[str, Any], adapter: Path) -> None:
    if config.get("peft_type") != "LORA":
        raise UnsupportedError(f"{adapter}: peft_type {config.get('peft_type')!r}; supported is LORA.")
    for key, accepted in UNUSED.items():
        if config.get(key) not in accepted:
            raise UnsupportedError(f"{adapter}: adapter_config.json: {key} = {config[key]!r} is not supported.")


def _pairs(
    stored: Mapping[str, SafetensorsTensor], adapter: Path
) -> dict[str, tuple[SafetensorsTensor, SafetensorsTensor]]:
    """Module name to its A [r, in] and B [out, r]."""
    pairs = {}
    for name, down in stored.items():
        match = re.fullmatch(r"(.+)\.lora_(embedding_)?A(\.weight|\.default|\.default\.weight)?", name)
        if match is None:
            continue
        other = name.replace(".lora_embedding_A", ".lora_embedding_B").replace(".lora_A", ".lora_B")
        if other not in stored:
            raise CheckpointError(f"{adapter}: has {name!r} without {other!r}.")
        pairs[match.group(1).removeprefix(PREFIX)] = (down, stored[other])
    if not pairs:
        raise CheckpointError(f"{adapter}: holds no lora_A tensors.")
    return pairs


def _whole(stored: Mapping[str, SafetensorsTensor]) -> dict[str, SafetensorsTensor]:
    """Tensors saved whole (`modules_to_save`), by module name."""
    whole = {}
    for name, tensor in stored.items():
        if ".lora_" not in name and name.endswith(".weight"):
            module = name.removeprefix(PREFIX).removesuffix(".weight").removesuffix(".base_layer")
            whole[module.removesuffix(".default").removesuffix(".modules_to_save")] = tensor
    return whole


def _target(module: str, checkpoint: Checkpoint, adapter: Path) -> str:
    """The weight that a module of the adapter changes."""
    name = f"{module}.weight"
    candidates = [name, *text_model_tensors({name: None}, checkpoint.config, nested=True)]
    found = next((candidate for candidate in candidates if candidate in checkpoint.tensors), None)
    if found is None:
        raise CheckpointError(
            f"{adapter}: changes {module!r}, which {checkpoint.name} does not have. Is it for another model?"
        )
    return found


def _scale(module: str, down: SafetensorsTensor, config: Mapping[str, Any]) -> float:
    patterns = config.get("alpha_pattern") or {}
    matches = (key for key in patterns if re.fullmatch(rf"(.*\.)?{key}", module))
    alpha = patterns.get(next(matches, None), config.get("lora_alpha"))
    if not isinstance(alpha, int | float):
        raise CheckpointError(f"adapter_config.json: lora_alpha is {alpha!r}, not a number.")
    rank = down.shape[0]
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
