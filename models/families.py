"""Which file describes which `model_type`: an import by name, so that unused families cost nothing."""

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from runtime.errors import CheckpointError, UnsupportedError

from .config import Config
from .description import Decoder

FAMILIES: Mapping[str, str] = {"llama": "llama"}  # model_type → module


@dataclass(frozen=True)
class Family:
    """A family's two halves: its description of a config, and its table from initializers to checkpoint tensors."""

    describe: Callable[[Config], Decoder]
    weights: Mapping[str, tuple[str, ...]]


def find_family(model_type: object) -> Family:
    """The family of a `model_type`; UnsupportedError lists what is supported."""
    if not isinstance(model_type, str):
        raise CheckpointError(f"config.json: model_type is missing; supported: {', '.join(FAMILIES)}.")
    if model_type not in FAMILIES:
        raise UnsupportedError(
            f"config.json: model_type {model_type!r} is not supported; supported: {', '.join(FAMILIES)}."
        )
    module = importlib.import_module(f".{FAMILIES[model_type]}", __package__)
    return Family(module.describe, module.WEIGHTS)


def describe(values: Mapping[str, Any], ignore_keys: Iterable[str] = ()) -> tuple[Family, Decoder]:
    """Read a config.json into a decoder, refusing keys that nobody understands.

    Args:
        values: the parsed config.json.
        ignore_keys: unknown keys that the user declares irrelevant.
    """
    family = find_family(values.get("model_type"))
    config = Config({key: value for key, value in values.items() if key not in set(ignore_keys)})
    decoder = family.describe(config)
    config.finish()
    _check_heads(decoder)
    return family, decoder


def _check_heads(decoder: Decoder) -> None:
    for i, layer in enumerate(decoder.layers):
        attention = layer.attention
        if attention.num_heads % attention.kv_heads:
            raise CheckpointError(
                f"config.json: layer {i} has {attention.num_heads} query heads, not a multiple of its "
                f"{attention.kv_heads} key/value heads."
            )
