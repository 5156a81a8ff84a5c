"""MiniMax M2."""

from collections.abc import Mapping

from ..config import Keys, Settings
from ..family import GgufFamily, counts


def _minimax_m2(keys: Keys) -> Settings:
    return {**keys.standard(), **counts(keys, "num_local_experts"), "rotary_dim": keys.integer("rope.dimension_count")}


ARCHITECTURES: Mapping[str, GgufFamily] = {
    "minimax-m2": GgufFamily(
        "minimax_m2",
        {
            "blk.{}.exp_probs_b.bias": "model.layers.{}.block_sparse_moe.e_score_correction_bias",
        },
        _minimax_m2,
    ),
}
