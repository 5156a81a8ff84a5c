"""`model_type: granite`: Llama with multipliers on embedding, attention, branches and logits."""

from ..decoder import skeleton
from ..decoder.config import Config
from ..decoder.description import Decoder
from ..decoder.sources import SKELETON

WEIGHTS = SKELETON


def describe(config: Config) -> Decoder:
    """The multipliers are exact constants; that of the branches is folded into the projections that end them."""
    bias = config.take("attention_bias", bool, False)
    scale = config.take("attention_multiplier", float, 1.0)
    attention = skeleton.attention(config, qkv_bias=bias, output_bias=bias, scale=scale)
    mlp, norm = skeleton.mlp(config, bias=config.take("mlp_bias", bool, False)), skeleton.rms(config)
    windows = skeleton.windows(config, skeleton.never, None)
    residual = config.take("residual_multiplier", float, 1.0)
    layers = skeleton.layers(attention, mlp, norm, windows, residual_scale=residual)
    return skeleton.decoder(
        config, "granite", layers, norm,
        embedding_scale=config.take("embedding_multiplier", float, 1.0),
        logit_scale=1 / config.take("logits_scaling", float, 1.0),
    )  # fmt: skip
