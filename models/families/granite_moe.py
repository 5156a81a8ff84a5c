"""Granite with mixtures of experts: granitemoe, and granitemoeshared with a shared expert beside them."""

from ..decoder import skeleton
from ..decoder.config import Config
from ..decoder.description import Decoder, MoE
from ..decoder.sources import LAYER, SKELETON, linear, table

_MOE = LAYER + "block_sparse_moe."

WEIGHTS = {
    **SKELETON,
    **table(router_weight=_MOE + "router.layer.weight"),
    **linear("experts_gate_up", _MOE + "input_linear"),
    **linear("experts_down", _MOE + "output_linear"),
    **linear("shared_gate_up", LAYER + "shared_mlp.input_linear"),
    **linear("shared_down", LAYER + "shared_mlp.output_linear"),
}


def describe(config: Config) -> Decoder:
    """Granite's multipliers around experts whose weights are a softmax over those taken."""
    model_type = config.take("model_type", str)
    bias, norm = config.take("attention_bias", bool, False), skeleton.rms(config)
    scale = config.take("attention_multiplier", float, 1.0)
    attention = skeleton.attention(config, qkv_bias=bias, output_bias=bias, scale=scale)
    shared = config.take("shared_intermediate_size", int, 0) if model_type == "granitemoeshared" else 0
    moe = MoE(
        skeleton.router(config, "num_local_experts"),
        skeleton.mlp(config),
        skeleton.mlp(config, size="shared_intermediate_size") if shared else None,
    )
    layers = skeleton.layers(
        attention, moe, norm, skeleton.windows(config, skeleton.never, None),
        residual_scale=config.take("residual_multiplier", float, 1.0),
    )  # fmt: skip
    return skeleton.decoder(
        config, model_type, layers, norm,
        embedding_scale=config.take("embedding_multiplier", float, 1.0),
        logit_scale=1 / config.take("logits_scaling", float, 1.0),
    )  # fmt: skip
