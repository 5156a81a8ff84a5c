"""`model_type: jais2`: Llama with LayerNorms, biases everywhere, and a squared ReLU without a gate."""

from ..decoder import skeleton
from ..decoder.config import Config
from ..decoder.description import Decoder
from ..decoder.sources import SKELETON

WEIGHTS = SKELETON


def describe(config: Config) -> Decoder:
    """The decoder of a Jais 2 config."""
    bias = config.take("attention_bias", bool, True)
    attention = skeleton.attention(config, context=8192, qkv_bias=bias, output_bias=bias)
    mlp = skeleton.mlp(config, "relu2", bias=config.take("mlp_bias", bool, True), gated=False)
    norm = skeleton.layer_norm(config)
    layers = skeleton.layers(attention, mlp, norm, skeleton.windows(config, skeleton.never, None))
    return skeleton.decoder(config, "jais2", layers, norm, context=8192)
