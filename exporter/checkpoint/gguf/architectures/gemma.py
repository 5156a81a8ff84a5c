"""Gemma 1 to 3."""

from collections.abc import Mapping

from ..config import Keys, Settings, present
from ..family import GgufFamily


def gemma(keys: Keys, kv_heads: int | None = None, width: int | None = None) -> Settings:
    """With the activation under its own key."""
    settings = keys.standard(kv_heads=kv_heads, width=width)
    del settings["hidden_act"]
    return {**settings, "hidden_activation": "gelu_pytorch_tanh"}


def _gemma2(keys: Keys) -> Settings:
    return {
        **gemma(keys),
        "attn_logit_softcapping": keys.get("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": keys.get("final_logit_softcapping", 30.0),
        "sliding_window": keys.integer("attention.sliding_window", 4096),
        "layer_types": keys.layer_types(2),
        "query_pre_attn_scalar": _query_scalar(keys, large=46),
    }


def _gemma3(keys: Keys) -> Settings:
    settings = gemma(keys)
    local = {"rope_type": "default", "rope_theta": keys.get("rope.freq_base_swa", 10000.0)}
    return {
        **settings,
        "rope_parameters": {"full_attention": settings["rope_parameters"], "sliding_attention": local},
        "sliding_window": keys.integer("attention.sliding_window"),
        "layer_types": keys.layer_types(6),
        "query_pre_attn_scalar": _query_scalar(keys, large=62),
        **present(final_logit_softcapping=keys.get("final_logit_softcapping")),
    }


def _query_scalar(keys: Keys, large: int) -> float:
    """What queries are divided by the root of: the head size, but H / N in the 27B models, known by their depth."""
    scale = keys.get("attention.scale")
    if scale:
        return float(round(scale**-2, 3))
    hidden, heads = keys.integer("embedding_length"), keys.integer("attention.head_count")
    return float(hidden / heads if keys.layers == large else keys.head_dim)


ARCHITECTURES: Mapping[str, GgufFamily] = {
    "gemma": GgufFamily("gemma", {"output": "lm_head"}, gemma, norm_shift=-1.0),
    "gemma2": GgufFamily(
        "gemma2",
        {
            "output": "lm_head",
        },
        _gemma2,
        norm_shift=-1.0,
    ),
    "gemma3": GgufFamily("gemma3_text", {}, _gemma3, norm_shift=-1.0),
}
