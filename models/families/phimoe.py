"""`model_type: phimoe`: Phi-3.5-MoE; LayerNorms, LongRoPE with stated magnitudes, the sparse mixer's two experts."""

from dataclasses import replace

from runtime.errors import UnsupportedError

from ..decoder import skeleton
from ..decoder.config import Config
from ..decoder.description import Attention, Decoder, MoE
from ..decoder.sources import LAYER, SKELETON, gated, table

_MOE = LAYER + "block_sparse_moe."

WEIGHTS = {
    **SKELETON,
    **table(router_weight=_MOE + "gate.weight"),
    **gated("experts", _MOE + "experts.{e}", "w1", "w3", "w2"),
}


def describe(config: Config) -> Decoder:
    """Every linear layer of attention has a bias if `attention_bias`, the head if `lm_head_bias`."""
    norm = skeleton.layer_norm(config, "rms_norm_eps")
    router = skeleton.router(
        config, "num_local_experts", normalize=False, jitter=config.take("router_jitter_noise", float, 0.01)
    )
    if router.top_k != 2:
        raise UnsupportedError(f"{config.where}: num_experts_per_tok must be 2 for phimoe, got {router.top_k}.")
    windows = skeleton.windows(config, skeleton.always, config.positive("sliding_window", None))
    layers = skeleton.layers(_attention(config), MoE(router, skeleton.mlp(config)), norm, windows)
    return skeleton.decoder(
        config, "phimoe", layers, norm, context=131072, head_bias=config.take("lm_head_bias", bool, False)
    )


def _attention(config: Config) -> Attention:
    bias = config.take("attention_bias", bool, False)
    attention = skeleton.attention(config, theta=1e6, context=131072, qkv_bias=bias, output_bias=bias)
    settings = config.take("rope_scaling", dict, None) or config.take("rope_parameters", dict, {})
    if attention.rope is None or "short_mscale" not in settings:
        return attention
    # transformers keeps the short frequencies for long sequences, and changes the magnitude alone.
    rope = replace(
        attention.rope,
        factor=float(settings["short_mscale"]),
        long_factor=float(settings["long_mscale"]),
        long_inverse_frequencies=attention.rope.inverse_frequencies,
    )
    return replace(attention, rope=rope)
