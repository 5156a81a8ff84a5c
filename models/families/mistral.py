"""Llama's skeleton with a sliding window: mistral, ministral, cwm."""

from ..decoder import skeleton
from ..decoder.config import Config
from ..decoder.description import Decoder
from ..decoder.sources import SKELETON

WEIGHTS = SKELETON


def describe(config: Config) -> Decoder:
    """Mistral slides on every layer, Ministral where layer_types says so, CWM on all but every fourth."""
    model_type = config.take("model_type", str)
    cwm = model_type == "cwm"
    bias = config.take("attention_bias", bool, False) if cwm else False
    attention = skeleton.attention(
        config,
        theta=1e6 if cwm else 10000.0,
        context=131072,
        head_dim=128 if cwm else None,
        qkv_bias=bias,
        output_bias=bias,
    )
    mlp = skeleton.mlp(config, bias=config.take("mlp_bias", bool, False) if cwm else False)
    norm = skeleton.rms(config, default=1e-5 if cwm else 1e-6)
    window = config.positive("sliding_window", None)
    rule = skeleton.never if window is None else (lambda i: i % 4 != 0) if cwm else skeleton.always
    windows = skeleton.windows(config, rule, window)
    layers = skeleton.layers(attention, mlp, norm, windows)
    return skeleton.decoder(config, model_type, layers, norm, context=131072)
