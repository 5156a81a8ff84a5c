"""Quantized Hugging Face checkpoints: the tensors of one matrix become one source, in float32 and as codes."""

import importlib
from collections.abc import Mapping
from typing import Any

from runtime.errors import CheckpointError, UnsupportedError

from ..checkpoint import TensorSource
from ..safetensors.file import SafetensorsTensor

Stored = Mapping[str, SafetensorsTensor]
Settings = Mapping[str, Any]

# quant_method → module with `combine(stored, settings)`.
METHODS = {
    "gptq": "gptq",
    "awq": "awq",
    "compressed-tensors": "compressed",
    "fp8": "fp8",
    "fbgemm_fp8": "fp8",
    "mxfp4": "mxfp4",
}


def combine_quantized(stored: Stored, settings: Settings, where: str) -> dict[str, TensorSource]:
    """Replace the tensors of quantized matrices by one dense tensor each, under its usual name.

    Args:
        stored: all tensors, by stored name.
        settings: `quantization_config` of config.json.
        where: names the checkpoint in messages.

    Raises:
        CheckpointError: tensors and settings contradict each other.
        UnsupportedError: the method or one of its settings is not supported.
    """
    method = settings.get("quant_method")
    if method not in METHODS:
        raise UnsupportedError(
            f"{where}: quant_method {method!r}; supported are {', '.join(METHODS)}. "
            "Export from the original checkpoint and quantize the bundle instead."
        )
    module = importlib.import_module(f".{METHODS[method]}", __package__)
    try:
        combined: dict[str, TensorSource] = module.combine(stored, settings)
    except KeyError as error:
        raise CheckpointError(f"{where}: {method}: {error} is missing.") from error
    except (TypeError, ValueError, IndexError, AttributeError) as error:
        raise CheckpointError(f"{where}: {method}: {error}.") from error
    return combined


def stems(stored: Stored, ending: str) -> list[str]:
    """The names that end so, without the ending."""
    return [name.removesuffix(ending) for name in stored if name.endswith(ending)]


def others(stored: Stored, *endings: str) -> dict[str, TensorSource]:
    """The tensors whose names end otherwise; they are stored plainly."""
    return {name: tensor for name, tensor in stored.items() if not name.endswith(endings)}
