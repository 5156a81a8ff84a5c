"""`model_type: hunyuan_v1_dense`: Llama with norms of queries and keys after their rotation."""

from . import skeleton
from .config import Config
from .description import Decoder, HeadNorm
from .sources import LAYER, SKELETON, norm

WEIGHTS = {
    **SKELETON,
    **norm("q_norm", LAYER + "self_attn.query_layernorm"),
    **norm("k_norm", LAYER + "self_attn.key_layernorm"),
}


def describe(config: Config) -> Decoder:
    """The decoder of a dense Hunyuan config."""
    config.take("eod_token_id", int, None)
    bias = config.take("attention_bias", bool, False)
    plain = skeleton.rms(config, default=1e-5)
    attention = skeleton.attention(config, qkv_bias=bias, output_bias=bias, qk_norm=HeadNorm(plain, after_rope=True))
    layers = skeleton.layers(attention, skeleton.mlp(config), plain, skeleton.windows(config, skeleton.never, None))
    return skeleton.decoder(config, "hunyuan_v1_dense", layers, plain)
