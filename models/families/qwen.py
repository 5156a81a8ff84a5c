"""Dense Qwen: qwen2 (biased q, k, v) and qwen3 (normed q and k)."""

from ..decoder import skeleton
from ..decoder.config import Config
from ..decoder.description import Decoder, HeadNorm
from ..decoder.sources import SKELETON

WEIGHTS = SKELETON


def describe(config: Config) -> Decoder:
    """Layers from `max_window_layers` on slide, if `use_sliding_window`."""
    model_type = config.take("model_type", str)
    qwen3 = model_type == "qwen3"
    norm = skeleton.rms(config)
    bias = config.take("attention_bias", bool, False) if qwen3 else True
    attention = skeleton.attention(
        config,
        head_dim=128 if qwen3 else None,
        context=32768,
        qkv_bias=bias,
        output_bias=bias and qwen3,
        qk_norm=HeadNorm(norm) if qwen3 else None,
    )
    sliding = config.take("use_sliding_window", bool, False)
    window = config.positive("sliding_window", 4096)
    first = config.take("max_window_layers", int, 28)
    windows = skeleton.windows(config, lambda i: sliding and i >= first, window if sliding else None)
    layers = skeleton.layers(attention, skeleton.mlp(config), norm, windows)
    return skeleton.decoder(config, model_type, layers, norm, context=32768)
