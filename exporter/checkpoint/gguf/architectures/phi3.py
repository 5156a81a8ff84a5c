"""Phi 3 and 4."""

from collections.abc import Mapping

from ..config import Keys, Settings, present
from ..family import GgufFamily


def phi3(keys: Keys) -> Settings:
    """With the window and the length that the model was first trained for."""
    window = keys.get("attention.sliding_window")
    original = keys.get("rope.scaling.original_context_length")
    return {**keys.standard(), **present(sliding_window=window or None, original_max_position_embeddings=original)}


ARCHITECTURES: Mapping[str, GgufFamily] = {
    "phi3": GgufFamily("phi3", {"blk.{}.ffn_up": "model.layers.{}.mlp.gate_up_proj"}, phi3),
}
