"""DeepSeek 2 and 3."""

from collections.abc import Mapping

from ..config import Keys, Settings
from ..family import GgufFamily, counts
from ..joined import Joined
from ..names import LAYER

SIGMOID = 2
_LATENT = {
    LAYER + "self_attn.kv_b_proj.weight": Joined(
        ("attn_k_b.weight", "attn_v_b.weight"), turned=("attn_k_b.weight",), flat=True
    )
}


def routed(keys: Keys) -> Settings:
    """What DeepSeek and its kin call their experts."""
    return {
        **counts(keys, "n_routed_experts"),
        "n_shared_experts": keys.integer("expert_shared_count", 1),
        "moe_intermediate_size": keys.integer("expert_feed_forward_length"),
        "first_k_dense_replace": keys.get("leading_dense_block_count", 0),
        "routed_scaling_factor": keys.get("expert_weights_scale") or 1.0,
        "norm_topk_prob": bool(keys.get("expert_weights_norm", False)),
        "n_group": keys.get("expert_group_count") or 1,
        "topk_group": keys.get("expert_group_used_count") or 1,
    }


def _deepseek(keys: Keys) -> Settings:
    """Latent attention. `key_length` is that of the latent form where there is a `key_length_mla` for the other."""
    settings = {**keys.standard(), **routed(keys)}
    rotary = keys.integer("rope.dimension_count")
    size = keys.integer("attention.key_length_mla", keys.integer("attention.key_length"))
    settings.pop("head_dim")
    settings["rope_parameters"].pop("partial_rotary_factor", None)
    settings["num_key_value_heads"] = settings["num_attention_heads"]
    return {
        **settings,
        "kv_lora_rank": keys.integer("attention.kv_lora_rank"),
        "q_lora_rank": keys.get("attention.q_lora_rank") if keys.has("blk.0.attn_q_a.weight") else None,
        "qk_rope_head_dim": rotary,
        "qk_nope_head_dim": size - rotary,
        "v_head_dim": keys.integer("attention.value_length_mla", keys.integer("attention.value_length")),
        **_v2_or_v3(keys, settings),
    }


def _v2_or_v3(keys: Keys, settings: Settings) -> Settings:
    if keys.get("expert_gating_func", 1) == SIGMOID:
        return {"model_type": "deepseek_v3"}
    if settings["n_group"] > 1:
        return {"topk_method": "group_limited_greedy"}
    return {"topk_method": "greedy", "n_group": None, "topk_group": None}


ARCHITECTURES: Mapping[str, GgufFamily] = {
    "deepseek2": GgufFamily(
        "deepseek_v2",
        {"blk.{}.exp_probs_b.bias": "model.layers.{}.mlp.gate.e_score_correction_bias"},
        _deepseek,
        joined=_LATENT,
        also=("deepseek_v3",),
    ),
}
