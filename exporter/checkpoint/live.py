"""A model that is in memory: a transformers PreTrainedModel, or any module with its `state_dict` names and a config."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from exporter.tokenizer.folder import folder_tokenizer_files
from runtime.errors import CheckpointError, UnsupportedError

from .checkpoint import Checkpoint, FloatArray, PackedTensor
from .generation import checked_settings
from .names import text_model_tensors
from .safetensors.folder import text_config
from .stored import require_finite


@dataclass(frozen=True)
class LiveTensor:
    """A torch tensor; read when it is asked for."""

    name: str
    tensor: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """As torch has it."""
        return tuple(self.tensor.shape)

    @property
    def dtype(self) -> str:
        """For messages."""
        return str(self.tensor.dtype).removeprefix("torch.")

    def read(self) -> FloatArray:
        """A copy in float32."""
        if not self.tensor.is_floating_point():
            raise UnsupportedError(
                f"{self.name}: a {self.dtype} tensor; a live model must hold floating-point weights."
            )
        values = np.array(self.tensor.detach().cpu().float().numpy(), np.float32, order="C")
        require_finite(values, self.name)
        return values

    def rows(self, start: int, stop: int) -> "LiveTensor":
        """Some rows: a view."""
        return LiveTensor(self.name, self.tensor[start:stop])

    def matrix(self, index: int) -> "LiveTensor":
        """One entry of the first dimension: a view."""
        return LiveTensor(self.name, self.tensor[index])

    def packed(self) -> PackedTensor | None:
        """None."""
        return None


def open_module(module: Any, tokenizer: Any = None, config: Mapping[str, Any] | None = None) -> Checkpoint:
    """A live model as a checkpoint. It must not be trained on while it is exported.

    Args:
        module: has `state_dict()`, and `config.to_dict()` unless `config` is given.
        tokenizer: has `save_pretrained(folder)`, as transformers' fast tokenizers do.
        config: the keys of config.json.
    """
    if config is None:
        if not hasattr(getattr(module, "config", None), "to_dict"):
            raise CheckpointError(f"{type(module).__name__} has no config; give the keys of config.json as `config`.")
        config = module.config.to_dict()
    text = text_config(config, Path("config"))
    generation = getattr(module, "generation_config", None)
    settings, unused = checked_settings(
        generation.to_diff_dict() if generation is not None else {}, Path("generation_config")
    )
    files, told = ({}, []) if tokenizer is None else _tokenizer_files(tokenizer)
    return Checkpoint(
        name=str(config.get("_name_or_path") or type(module).__name__),
        format="module",
        config=text,
        generation_config=settings,
        tensors=text_model_tensors(_live_tensors(module), text, nested="text_config" in config),
        tokenizer_files=files,
        warnings=(*unused, *told),
    )


def _live_tensors(module: Any) -> dict[str, LiveTensor]:
    """Each tensor once: a tied head is the embedding under a second name."""
    tensors: dict[int, LiveTensor] = {}
    for name, tensor in module.state_dict().items():
        tensors.setdefault(tensor.data_ptr() or id(tensor), LiveTensor(name, tensor))
    return {tensor.name: tensor for tensor in tensors.values()}


def _tokenizer_files(tokenizer: Any) -> tuple[dict[str, bytes], list[str]]:
    with tempfile.TemporaryDirectory(prefix="onnxlm-") as folder:
        tokenizer.save_pretrained(folder)
        return folder_tokenizer_files(Path(folder))
