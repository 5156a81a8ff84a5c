"""Gemma 4."""

from collections.abc import Mapping

from ..config import Keys, Settings, present
from ..family import GgufFamily
from .gemma import gemma


def _gemma4(keys: Keys) -> Settings:
    """Full layers have wider heads, and where they have no v, the keys are the values."""
    types, kv_heads = keys.layer_types(6), keys.per_layer("attention.head_count_kv")
    by_type = {kind: kv_heads[i] for i, kind in enumerate(types)}
    full = [i for i, kind in enumerate(types) if kind == "full_attention"]
    same = any(keys.has(f"blk.{i}.attn_k.weight") and not keys.has(f"blk.{i}.attn_v.weight") for i in full)
    widths = keys.per_layer("feed_forward_length")
    settings = gemma(keys, kv_heads=by_type.get("sliding_attention", kv_heads[0]), width=min(widths))
    embedding = keys.file.tensors.get("per_layer_token_embd.weight")
    return {
        **settings,
        "head_dim": keys.integer("attention.key_length_swa", keys.head_dim),
        "global_head_dim": keys.head_dim,
        "num_global_key_value_heads": by_type.get("full_attention"),
        "attention_k_eq_v": same,
        "use_double_wide_mlp": max(widths) > min(widths),
        "enable_moe_block": bool(keys.get("expert_count")),
        "rope_parameters": _gemma4_rope(keys),
        "sliding_window": keys.integer("attention.sliding_window"),
        "layer_types": types,
        "num_kv_shared_layers": keys.get("attention.shared_kv_layers", 0),
        "hidden_size_per_layer_input": keys.get("embedding_length_per_layer_input", 0),
        **present(
            final_logit_softcapping=keys.get("final_logit_softcapping"),
            vocab_size_per_layer_input=None if embedding is None else embedding.shape[0],
        ),
    }


def _gemma4_rope(keys: Keys) -> Settings:
    """Pairs of full layers that do not turn have enormous divisors in the file."""
    rope = keys.rope()
    factors = rope.pop("factors", [1.0])
    share = sum(factor < 1e6 for factor in factors) / len(factors)
    local = {"rope_type": "default", "rope_theta": keys.get("rope.freq_base_swa", 10000.0)}
    full = {**rope, "rope_type": "proportional", "partial_rotary_factor": share}
    return {"full_attention": full, "sliding_attention": local}


ARCHITECTURES: Mapping[str, GgufFamily] = {
    "gemma4": GgufFamily("gemma4_text", {}, _gemma4),
}
