"""`model_type: starcoder2`: Llama's names with LayerNorms, biases and a plain tanh-GELU network."""

from ..decoder import skeleton
from ..decoder.config import Config
from ..decoder.description import Decoder
from ..decoder.sources import LAYER, SKELETON, linear

WEIGHTS = {**SKELETON, **linear("up", LAYER + "mlp.c_fc"), **linear("down", LAYER + "mlp.c_proj")}


def describe(config: Config) -> Decoder:
    """Every layer slides, if there is a window."""
    bias = config.take("use_bias", bool, True)
    attention = skeleton.attention(config, context=4096, qkv_bias=bias, output_bias=bias)
    mlp = skeleton.mlp(config, "gelu_pytorch_tanh", bias=bias, gated=False)
    norm = skeleton.layer_norm(config, "norm_epsilon")
    window = config.positive("sliding_window", None)
    windows = skeleton.windows(config, skeleton.never if window is None else skeleton.always, window)
    layers = skeleton.layers(attention, mlp, norm, windows)
    return skeleton.decoder(config, "starcoder2", layers, norm, tied=True, context=4096)
