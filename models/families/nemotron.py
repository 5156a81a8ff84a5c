"""`model_type: nemotron`: LayerNorms of 1 + w, half-rotated heads, squared ReLU without a gate."""

from ..decoder import skeleton
from ..decoder.config import Config
from ..decoder.description import Decoder
from ..decoder.sources import SKELETON

WEIGHTS = SKELETON


def describe(config: Config) -> Decoder:
    """The decoder of a Nemotron-4 or Minitron config."""
    bias = config.take("attention_bias", bool, False)
    attention = skeleton.attention(config, head_dim=None, partial=0.5, context=4096, qkv_bias=bias, output_bias=bias)
    mlp = skeleton.mlp(config, "relu2", bias=config.take("mlp_bias", bool, False), gated=False)
    norm = skeleton.layer_norm(config, "norm_eps", offset=1.0)
    layers = skeleton.layers(attention, mlp, norm, skeleton.windows(config, skeleton.never, None))
    return skeleton.decoder(config, "nemotron", layers, norm, context=4096)
