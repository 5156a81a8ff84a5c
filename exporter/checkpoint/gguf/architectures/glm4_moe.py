"""GLM 4.5."""

from collections.abc import Mapping

from ..config import Keys, Settings
from ..family import GgufFamily, biased
from .deepseek import routed


def _glm4_moe(keys: Keys) -> Settings:
    return {**biased(keys), **routed(keys), "use_qk_norm": keys.has("blk.0.attn_q_norm.weight")}


ARCHITECTURES: Mapping[str, GgufFamily] = {
    "glm4moe": GgufFamily(
        "glm4_moe",
        {
            "blk.{}.exp_probs_b.bias": "model.layers.{}.mlp.gate.e_score_correction_bias",
        },
        _glm4_moe,
    ),
}
