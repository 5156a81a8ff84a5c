"""Cohere's Command models: cohere and cohere2; parallel branches on one LayerNorm without bias, interleaved rope."""

from dataclasses import replace

from ..decoder import skeleton
from ..decoder.config import Config
from ..decoder.description import Attention, Decoder, HeadNorm, Norm
from ..decoder.sources import SKELETON

WEIGHTS = SKELETON


def describe(config: Config) -> Decoder:
    """Cohere 2 has rope on its sliding layers only, three of four."""
    model_type = config.take("model_type", str)
    plain = skeleton.layer_norm(config, bias=False)
    attentions = _attentions(config, model_type == "cohere2", plain)
    layers = [
        replace(layer, pre_mlp=None, topology="parallel")
        for attention in attentions
        for layer in skeleton.layers(attention, skeleton.mlp(config), plain, [attention.window])
    ]
    scale = config.take("logit_scale", float, 0.0625)
    return skeleton.decoder(config, model_type, layers, plain, tied=True, context=8192, logit_scale=scale)


def _attentions(config: Config, second: bool, plain: Norm) -> list[Attention]:
    bias = config.take("attention_bias", bool, False)
    normed = HeadNorm(plain, over="heads") if not second and config.take("use_qk_norm", bool, False) else None
    base = skeleton.attention(
        config, theta=10000.0 if second else 5e5, interleaved=True, context=8192,
        qkv_bias=bias, output_bias=bias, qk_norm=normed,
    )  # fmt: skip
    if not second:
        return [base] * config.positive("num_hidden_layers")
    period = config.positive("sliding_window_pattern", config.positive("_sliding_window_pattern", 4))
    windows = skeleton.windows(config, skeleton.all_but_every(period), config.positive("sliding_window", 4096))
    return [replace(base, window=window, rope=base.rope if window else None) for window in windows]
