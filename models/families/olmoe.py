"""`model_type: olmoe`: OLMo's norms on all queries and keys together, and a mixture of experts in each layer."""

from ..decoder import skeleton
from ..decoder.config import Config
from ..decoder.description import Decoder, HeadNorm, MoE
from ..decoder.sources import LAYER, SKELETON, gated, table

WEIGHTS = {
    **SKELETON,
    **table(router_weight=LAYER + "mlp.gate.weight"),
    **gated("experts", LAYER + "mlp.experts.{e}"),
}


def describe(config: Config) -> Decoder:
    """Queries and keys are normed and then clipped."""
    bias, norm = config.take("attention_bias", bool, False), skeleton.rms(config, default=1e-5)
    attention = skeleton.attention(
        config, context=4096, qkv_bias=bias, output_bias=bias, qk_norm=HeadNorm(norm, over="all"),
        clip=config.take("clip_qkv", float, None),
    )  # fmt: skip
    router = skeleton.router(config, normalize=config.take("norm_topk_prob", bool, False))
    windows = skeleton.windows(config, skeleton.never, None)
    layers = skeleton.layers(attention, MoE(router, skeleton.mlp(config)), norm, windows)
    return skeleton.decoder(config, "olmoe", layers, norm, context=4096)
