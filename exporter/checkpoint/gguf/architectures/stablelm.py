"""StableLM."""

from collections.abc import Mapping

from ..config import Keys, Settings
from ..family import GgufFamily
from ..names import LAYER, in_layers


def _stablelm(keys: Keys) -> Settings:
    return {
        **keys.standard("layer_norm_eps"),
        "use_qkv_bias": keys.has("blk.0.attn_q.bias"),
        "qk_layernorm": keys.has("blk.0.attn_q_norm.weight"),
        "use_parallel_residual": not keys.has("blk.0.ffn_norm.weight"),
    }


ARCHITECTURES: Mapping[str, GgufFamily] = {
    "stablelm": GgufFamily(
        "stablelm",
        in_layers(
            LAYER,
            attn_q_norm="self_attn.q_layernorm.norms.{e}",
            attn_k_norm="self_attn.k_layernorm.norms.{e}",
        ),
        _stablelm,
    ),
}
