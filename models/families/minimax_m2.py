"""`model_type: minimax_m2`: norms on all queries and keys together, partial rope, sigmoid-routed experts."""

from ..decoder import skeleton
from ..decoder.config import Config
from ..decoder.description import Decoder, HeadNorm, MoE
from ..decoder.sources import LAYER, SKELETON, gated, table

_MOE = LAYER + "block_sparse_moe."

WEIGHTS = {
    **SKELETON,
    **table(router_weight=_MOE + "gate.weight", correction=_MOE + "e_score_correction_bias"),
    **gated("experts", _MOE + "experts.{e}", "w1", "w3", "w2"),
}

# What released configs state and transformers does not read, because the model is always so.
_FIXED = {
    "scoring_func": "sigmoid",
    "use_qk_norm": True,
    "qk_norm_type": "per_layer",
    "use_routing_bias": True,
    "shared_intermediate_size": 0,
}
# Multi-token prediction, which is not exported; leftovers of MiniMax-Text; training.
_UNUSED = (
    "num_mtp_modules", "mtp_transformer_layers", "use_mtp", "shared_moe_mode", "attn_type_list",
    "layernorm_full_attention_beta", "layernorm_linear_attention_beta", "layernorm_mlp_beta", "router_jitter_noise",
)  # fmt: skip


def describe(config: Config) -> Decoder:
    """Experts are taken by sigmoid plus correction; their weights are the sigmoids, divided by their sum."""
    skeleton.require(config, _FIXED)
    for key in _UNUSED:
        config.take(key, object, None)
    norm, size = skeleton.rms(config), config.positive("head_dim", 128)
    rotary = config.positive("rotary_dim", size)
    attention = skeleton.attention(
        config, head_dim=128, theta=5e6, partial=rotary / size, context=196608, qk_norm=HeadNorm(norm, over="all")
    )
    router = skeleton.router(config, "num_local_experts", scores="sigmoid", correction=True)
    windows = skeleton.windows(config, skeleton.never, None)
    layers = skeleton.layers(attention, MoE(router, skeleton.mlp(config)), norm, windows)
    return skeleton.decoder(config, "minimax_m2", layers, norm, context=196608)
