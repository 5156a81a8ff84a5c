"""`model_type: llama`: Llama 1 to 3.3, SmolLM and SmolLM2, TinyLlama, Yi, Vicuna, R1-Distill-Llama."""

from ..decoder import skeleton
from ..decoder.config import Config
from ..decoder.description import Decoder
from ..decoder.sources import SKELETON

WEIGHTS = SKELETON


def describe(config: Config) -> Decoder:
    """The decoder that this config describes.

    Raises:
        CheckpointError, UnsupportedError: a key is missing, wrong, or not supported; the message names it.
    """
    bias = config.take("attention_bias", bool, False)
    attention = skeleton.attention(config, qkv_bias=bias, output_bias=bias)
    mlp = skeleton.mlp(config, bias=config.take("mlp_bias", bool, False))
    norm = skeleton.rms(config)
    windows = skeleton.windows(config, skeleton.never, None)
    return skeleton.decoder(config, "llama", skeleton.layers(attention, mlp, norm, windows), norm)
