"""What transformers' config classes take for keys that a config.json leaves out.

Multimodal checkpoints are published with a `text_config` of what differs from its class alone; a config.json of its own
leaves out less, but means the same. `class_defaults.json` is written by tests/bench/class_defaults.py.
"""

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from runtime.errors import CheckpointError

# What a config.json of its own always states: without them it is broken, or no model's.
_SIZES = (
    "d_model", "ffn_dim", "hidden_size", "intermediate_size", "kv_lora_rank", "moe_intermediate_size",
    "n_embd", "n_head", "n_heads", "n_layer", "n_layers", "n_routed_experts", "num_attention_heads",
    "num_experts", "num_heads", "num_hidden_layers", "num_layers", "num_local_experts",
    "vocab_size",
)  # fmt: skip
_ROPE = "rope_parameters"


def complete_config(values: Mapping[str, Any]) -> dict[str, Any]:
    """A config.json with its class's defaults, except sizes, which it must state; null is a value.

    Raises:
        CheckpointError: a base of a rope whose scaling is left to the class, which would ignore that base.
    """
    defaults = _defaults(values.get("model_type"))
    return _merged({key: value for key, value in defaults.items() if key not in _SIZES}, values)


def complete_text_config(text: Mapping[str, Any], outer_type: object) -> dict[str, Any]:
    """A `text_config` with its model type and its class's defaults, sizes too.

    Raises:
        CheckpointError: as of `complete_config`.
    """
    model_type = text.get("model_type") or _tables()["text_models"].get(str(outer_type))
    return _merged(_defaults(model_type), {**text, **({"model_type": model_type} if model_type else {})})


def _merged(defaults: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    rope = defaults.get(_ROPE)
    if not rope or values.get(_ROPE) or values.get("rope_scaling"):
        return {key: value for key, value in defaults.items() if key != _ROPE} | dict(values)
    stated = values.get("rope_theta")
    if stated not in (None, rope["rope_theta"]):
        raise CheckpointError(
            f"config.json: rope_theta {stated!r} without rope_scaling: transformers takes {rope!r} for this model and "
            f"ignores rope_theta. State all of it in rope_parameters."
        )
    return {**defaults, **values, _ROPE: rope}


def _defaults(model_type: object) -> dict[str, Any]:
    found: dict[str, Any] = _tables()["defaults"].get(str(model_type), {})
    return found


@cache
def _tables() -> dict[str, dict[str, Any]]:
    text = (files(__package__) / "class_defaults.json").read_text(encoding="utf-8")
    tables: dict[str, dict[str, Any]] = json.loads(text)
    return tables
