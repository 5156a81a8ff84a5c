"""What the tensors of an adapter are, by their names: every one of them has a part, or is refused."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from runtime.errors import UnsupportedError

from ..safetensors.file import SafetensorsTensor

PREFIX = "base_model.model."
# Ending of the name → part. The adapter's own name, mostly "default", may stand between.
_NAME = r"(?:\.default)?"
_PARTS = (
    (rf"\.lora_A{_NAME}(?:\.weight)?", "down"),
    (rf"\.lora_B{_NAME}\.bias", "up_bias"),
    (rf"\.lora_B{_NAME}(?:\.weight)?", "up"),
    (rf"\.lora_embedding_A{_NAME}", "down"),
    (rf"\.lora_embedding_B{_NAME}", "up"),
    (rf"\.lora_magnitude_vector{_NAME}(?:\.weight)?", "magnitude"),
    (rf"(?:\.token_adapter)?\.trainable_tokens_delta{_NAME}", "token_rows"),
    (r"(?:\.base_layer)\.weight", "base"),
    (rf"(?:\.base_layer)?(?:\.modules_to_save{_NAME})?\.weight", "whole"),
    (rf"(?:\.base_layer)?(?:\.modules_to_save{_NAME})?\.bias", "bias"),
)


@dataclass
class ModuleTensors:
    """What an adapter holds for one module.

    Args:
        down, up: the factors `[r, in]` and `[out, r]`.
        up_bias: added to the output of `up`, `[out]`.
        magnitude: DoRA's norms, one an output.
        token_rows: rows that replace those of an embedding.
        base: the weight that the factors are added to, in place of the base model's.
        whole, bias: weight and bias that replace those of the base model.
    """

    down: SafetensorsTensor | None = None
    up: SafetensorsTensor | None = None
    up_bias: SafetensorsTensor | None = None
    magnitude: SafetensorsTensor | None = None
    token_rows: SafetensorsTensor | None = None
    base: SafetensorsTensor | None = None
    whole: SafetensorsTensor | None = None
    bias: SafetensorsTensor | None = None


def modules_of(stored: Mapping[str, SafetensorsTensor], adapter: Path) -> dict[str, ModuleTensors]:
    """The tensors of an adapter by module.

    Raises:
        UnsupportedError: a tensor that nothing here would use.
    """
    modules: dict[str, ModuleTensors] = {}
    for name, tensor in stored.items():
        module, part = _split(name, adapter)
        entry = modules.setdefault(module, ModuleTensors())
        if (other := getattr(entry, part)) is not None:
            raise UnsupportedError(f"{adapter}: holds {other.name!r} and {name!r}: is it two adapters in one file?")
        setattr(entry, part, tensor)
    return modules


def _split(name: str, adapter: Path) -> tuple[str, str]:
    for ending, part in _PARTS:
        match = re.fullmatch(rf"(.+?){ending}", name.removeprefix(PREFIX))
        if match and ".lora_" not in match.group(1):
            return match.group(1), part
    raise UnsupportedError(
        f"{adapter}: the adapter's tensor {name!r} is not known: merging without it would make another model. Merge "
        "the adapter with PEFT (merge_and_unload) and export the merged model."
    )
