"""Qwen 2 and 3 with experts, and OLMoE."""

from collections.abc import Mapping

from ..config import Keys, Settings, present
from ..family import GgufFamily, biased, counts


def _qwen2_moe(keys: Keys) -> Settings:
    shared = keys.file.tensors.get("blk.0.ffn_up_shexp.weight")
    return {
        **keys.standard(),
        **counts(keys, "num_experts"),
        "moe_intermediate_size": keys.integer("expert_feed_forward_length"),
        "shared_expert_intermediate_size": 0 if shared is None else shared.shape[0],
        "norm_topk_prob": bool(keys.get("expert_weights_norm", False)),
    }


def _qwen3_moe(keys: Keys) -> Settings:
    return {
        **biased(keys),
        **counts(keys, "num_experts"),
        "moe_intermediate_size": keys.integer("expert_feed_forward_length"),
        "norm_topk_prob": True,  # all released models; the file does not say
    }


def _olmoe(keys: Keys) -> Settings:
    normed = bool(keys.get("expert_weights_norm", False))
    clip = present(clip_qkv=keys.get("attention.clamp_kqv"))
    return {**keys.standard(), **counts(keys, "num_experts"), "norm_topk_prob": normed, **clip}


ARCHITECTURES: Mapping[str, GgufFamily] = {
    "qwen2moe": GgufFamily(
        "qwen2_moe",
        {},
        _qwen2_moe,
        squeezed={"ffn_gate_inp_shexp.weight": 0},
    ),
    "qwen3moe": GgufFamily(
        "qwen3_moe",
        {},
        _qwen3_moe,
    ),
    "olmoe": GgufFamily(
        "olmoe",
        {},
        _olmoe,
    ),
}
