"""EXAONE 4."""

from collections.abc import Mapping

from ..config import Keys, Settings, present
from ..family import GgufFamily


def _exaone4(keys: Keys) -> Settings:
    window = keys.get("attention.sliding_window")
    types = keys.layer_types(4) if window else ["full_attention"] * keys.layers
    return {**keys.standard(), **present(sliding_window=window or None), "layer_types": types}


ARCHITECTURES: Mapping[str, GgufFamily] = {
    "exaone4": GgufFamily(
        "exaone4",
        {},
        _exaone4,
    ),
}
