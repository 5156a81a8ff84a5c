"""Gemma 3n."""

from collections.abc import Mapping
from math import erf, sqrt

from ..config import Keys, Settings, present
from ..family import GgufFamily
from .gemma import gemma


def _gemma3n(keys: Keys) -> Settings:
    settings = gemma(keys)
    local = {"rope_type": "default", "rope_theta": keys.get("rope.freq_base_swa", 10000.0)}
    embedding = keys.file.tensors.get("per_layer_token_embd.weight")
    return {
        **settings,
        "intermediate_size": keys.per_layer("feed_forward_length"),
        "rope_parameters": {"full_attention": settings["rope_parameters"], "sliding_attention": local},
        "sliding_window": keys.integer("attention.sliding_window"),
        "layer_types": keys.layer_types(5),
        "num_kv_shared_layers": keys.get("attention.shared_kv_layers", 0),
        "hidden_size_per_layer_input": keys.integer("embedding_length_per_layer_input"),
        "altup_num_inputs": keys.integer("altup.num_inputs", 4),
        "altup_active_idx": keys.get("altup.active_idx", 0),
        "activation_sparsity_pattern": [_share(z) for z in keys.per_layer("activation_sparsity_scale")],
        "final_logit_softcapping": keys.get("final_logit_softcapping", 30.0),
        **present(
            vocab_size_per_layer_input=None if embedding is None else embedding.shape[0],
            laurel_rank=keys.file.tensors["blk.0.laurel_l.weight"].shape[0]
            if keys.has("blk.0.laurel_l.weight")
            else None,
        ),
    }


def _share(deviations: float) -> float:
    """The share of a normal distribution below `deviations`; zero cuts nothing."""
    return round((1 + erf(deviations / sqrt(2))) / 2, 6) if deviations else 0.0


ARCHITECTURES: Mapping[str, GgufFamily] = {
    "gemma3n": GgufFamily(
        "gemma3n_text",
        {
            "altup_proj": "model.altup_projections.{e}",
            "altup_unembd_proj": "model.altup_unembed_projections.{e}",
        },
        _gemma3n,
    ),
}
