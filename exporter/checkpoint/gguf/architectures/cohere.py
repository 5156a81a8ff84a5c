"""Command R and its successor."""

from collections.abc import Mapping

from ..config import Keys, Settings
from ..family import GgufFamily


def _cohere(keys: Keys) -> Settings:
    settings = {**keys.standard("layer_norm_eps"), "logit_scale": keys.get("logit_scale", 0.0625)}
    return {**settings, "use_qk_norm": keys.has("blk.0.attn_q_norm.weight")}


def _cohere2(keys: Keys) -> Settings:
    return {
        **keys.standard("layer_norm_eps"),
        "logit_scale": keys.get("logit_scale", 0.0625),
        "sliding_window": keys.integer("attention.sliding_window"),
        "layer_types": keys.layer_types(4),
    }


ARCHITECTURES: Mapping[str, GgufFamily] = {
    "command-r": GgufFamily(
        "cohere",
        {
            "output": "lm_head",
        },
        _cohere,
    ),
    "cohere2": GgufFamily(
        "cohere2",
        {
            "output": "lm_head",
        },
        _cohere2,
    ),
}
