"""`model_type: glm4_moe`: GLM-4.5 and 4.6; half rope on half of each head, DeepSeek-V3's routing."""

from ..decoder import skeleton
from ..decoder.config import Config
from ..decoder.description import Decoder, HeadNorm
from ..decoder.sources import LAYER, SKELETON, gated, table

WEIGHTS = {
    **SKELETON,
    **table(router_weight=LAYER + "mlp.gate.weight", correction=LAYER + "mlp.gate.e_score_correction_bias"),
    **gated("experts", LAYER + "mlp.experts.{e}"),
    **gated("shared", LAYER + "mlp.shared_experts"),
}


def describe(config: Config) -> Decoder:
    """The first layers are dense."""
    norm, dense = skeleton.rms(config, default=1e-5), config.take("first_k_dense_replace", int, 1)
    attention = skeleton.attention(
        config, partial=0.5, context=131072, qkv_bias=config.take("attention_bias", bool, False),
        qk_norm=HeadNorm(norm) if config.take("use_qk_norm", bool, False) else None,
    )  # fmt: skip
    layers = skeleton.layers(attention, skeleton.mlp(config), norm, skeleton.windows(config, skeleton.never, None))
    layers = skeleton.mixed(layers, skeleton.corrected_moe(config), lambda i: i >= dense)
    return skeleton.decoder(config, "glm4_moe", layers, norm, context=131072)
