"""Granite."""

from collections.abc import Mapping

from ..config import Keys, Settings, present
from ..family import GgufFamily
from ..orders import HALVES
from .llama import llama


def granite(keys: Keys) -> Settings:
    """With its four multipliers."""
    multipliers = {
        "attention_multiplier": "attention.scale",
        "embedding_multiplier": "embedding_scale",
        "residual_multiplier": "residual_scale",
        "logits_scaling": "logit_scale",
    }
    return {**llama(keys), **present(**{name: keys.get(key) for name, key in multipliers.items()})}


ARCHITECTURES: Mapping[str, GgufFamily] = {
    "granite": GgufFamily("granite", {}, granite, HALVES),
}
