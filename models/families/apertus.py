"""`model_type: apertus`: Llama with norms of queries and keys, and an activation whose shape is learned."""

from ..decoder import skeleton
from ..decoder.config import Config
from ..decoder.description import Decoder, HeadNorm
from ..decoder.sources import LAYER, SKELETON, UNUSED, Source, norm, table

_ACTIVATION = LAYER + "mlp.act_fn."

WEIGHTS = {
    **SKELETON,
    **norm("pre_attention", LAYER + "attention_layernorm"),
    **norm("pre_mlp", LAYER + "feedforward_layernorm"),
    **table(alpha_p=_ACTIVATION + "alpha_p", alpha_n=_ACTIVATION + "alpha_n"),
    UNUSED: Source((_ACTIVATION + "beta", _ACTIVATION + "eps")),  # the same in all files
}


def describe(config: Config) -> Decoder:
    """The decoder of an Apertus config."""
    plain, bias = skeleton.rms(config, default=1e-5), config.take("attention_bias", bool, False)
    attention = skeleton.attention(
        config, theta=12e6, context=65536, qkv_bias=bias, output_bias=bias, qk_norm=HeadNorm(plain)
    )
    mlp = skeleton.mlp(config, "xielu", gated=False)
    layers = skeleton.layers(attention, mlp, plain, skeleton.windows(config, skeleton.never, None))
    return skeleton.decoder(config, "apertus", layers, plain, context=65536)
