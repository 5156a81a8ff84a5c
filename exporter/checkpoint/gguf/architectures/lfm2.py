"""LFM 2, dense and with experts."""

from collections.abc import Mapping

from ..config import Keys, Settings
from ..family import GgufFamily, counts


def _lfm2(keys: Keys) -> Settings:
    """Layers without key heads are convolutions."""
    settings = keys.standard()
    del settings["hidden_act"], settings["head_dim"]
    return {
        **settings,
        "norm_eps": settings.pop("rms_norm_eps"),
        "layer_types": ["full_attention" if n else "conv" for n in keys.per_layer("attention.head_count_kv")],
        "conv_L_cache": keys.integer("shortconv.l_cache"),
        "conv_bias": keys.has("blk.0.shortconv.conv.bias"),
        "block_auto_adjust_ff_dim": False,  # the size in the file is the adjusted one
    }


def _lfm2_moe(keys: Keys) -> Settings:
    settings = _lfm2(keys)
    del settings["block_auto_adjust_ff_dim"]
    return {
        **settings,
        **counts(keys, "num_experts"),
        "moe_intermediate_size": keys.integer("expert_feed_forward_length"),
        "num_dense_layers": keys.get("leading_dense_block_count", 0),
        "use_expert_bias": any(".exp_probs_b" in name for name in keys.file.tensors),
        "norm_topk_prob": bool(keys.get("expert_weights_norm", True)),
        "routed_scaling_factor": keys.get("expert_weights_scale") or 1.0,
    }


ARCHITECTURES: Mapping[str, GgufFamily] = {
    "lfm2": GgufFamily(
        "lfm2",
        {"output_norm": "model.embedding_norm", "blk.{}.ffn_up": "model.layers.{}.feed_forward.w3"},
        _lfm2,
        squeezed={"shortconv.conv.weight": 1},
    ),
    "lfm2moe": GgufFamily(
        "lfm2_moe",
        {
            "output": "lm_head",
            "output_norm": "model.embedding_norm",
            "blk.{}.ffn_up": "model.layers.{}.feed_forward.w3",
        },
        _lfm2_moe,
        squeezed={"shortconv.conv.weight": 1},
    ),
}
