"""ERNIE 4.5 with experts."""

from collections.abc import Mapping

from ..config import Keys, Settings
from ..family import GgufFamily


def _ernie_moe(keys: Keys) -> Settings:
    return {
        **keys.standard(),
        "use_bias": keys.has("blk.0.attn_q.bias"),
        "moe_num_experts": keys.integer("expert_count"),
        "moe_k": keys.integer("expert_used_count"),
        "moe_intermediate_size": keys.integer("expert_feed_forward_length"),
        "moe_num_shared_experts": keys.integer("expert_shared_count", 1),
        "moe_layer_start_index": keys.get("leading_dense_block_count", 0),
        "moe_layer_end_index": keys.layers - 1,
        "moe_layer_interval": keys.get("interleave_moe_layer_step") or 1,
    }


ARCHITECTURES: Mapping[str, GgufFamily] = {
    "ernie4_5-moe": GgufFamily(
        "ernie4_5_moe",
        {"blk.{}.exp_probs_b.bias": "model.layers.{}.mlp.moe_statics.e_score_correction_bias"},
        _ernie_moe,
        squeezed={"exp_probs_b.bias": 0},
    ),
}
