"""Granite with experts."""

from collections.abc import Mapping
from dataclasses import replace

from ..config import Keys, Settings, present
from ..family import GgufFamily, counts
from ..joined import GATE_UP, Joined
from ..names import LAYER
from ..orders import HALVES
from .granite import granite


def _granite_moe(keys: Keys) -> Settings:
    settings = {**granite(keys), **counts(keys, "num_local_experts")}
    settings.pop("mlp_bias")
    shared = keys.get("expert_shared_feed_forward_length")
    return {**settings, **present(shared_intermediate_size=shared)}


_GRANITE_EXPERTS = {
    LAYER + "block_sparse_moe.input_linear.weight": Joined(GATE_UP),
    LAYER + "shared_mlp.input_linear.weight": Joined(("ffn_gate_shexp.weight", "ffn_up_shexp.weight"), axis=0),
}


def _with_shared(keys: Keys, family: GgufFamily) -> GgufFamily:
    """An expert for all tokens makes it another family in Hugging Face."""
    return replace(family, model_type="granitemoeshared") if keys.get("expert_shared_feed_forward_length") else family


ARCHITECTURES: Mapping[str, GgufFamily] = {
    "granitemoe": GgufFamily(
        "granitemoe",
        {},
        _granite_moe,
        HALVES,
        joined=_GRANITE_EXPERTS,
        variant=_with_shared,
        also=("granitemoeshared",),
    ),
}
