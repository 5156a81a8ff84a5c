"""`model_type: dots1`: Qwen3's attention and DeepSeek-V3's experts."""

from ..decoder import skeleton
from ..decoder.config import Config
from ..decoder.description import Decoder, HeadNorm
from ..decoder.sources import Table
from .glm4_moe import WEIGHTS as GLM

WEIGHTS: Table = GLM


def describe(config: Config) -> Decoder:
    """Layers from `max_window_layers` on slide, if a window is set; the first layers are dense."""
    plain, dense = skeleton.rms(config), config.take("first_k_dense_replace", int, 0)
    bias = config.take("attention_bias", bool, False)
    attention = skeleton.attention(config, qkv_bias=bias, output_bias=bias, qk_norm=HeadNorm(plain))
    window, last = config.positive("sliding_window", None), config.take("max_window_layers", int, 62)
    windows = skeleton.windows(config, lambda i: window is not None and i >= last, window)
    layers = skeleton.layers(attention, skeleton.mlp(config), plain, windows)
    moe = skeleton.corrected_moe(config, shared=0, normalize=False)
    return skeleton.decoder(config, "dots1", skeleton.mixed(layers, moe, lambda i: i >= dense), plain)
