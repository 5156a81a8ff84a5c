"""`model_type: stablelm`: LayerNorms, quarter-rotated heads, perhaps norms of each head, perhaps parallel branches."""

from dataclasses import replace

from ..decoder import skeleton
from ..decoder.config import Config
from ..decoder.description import Decoder, HeadNorm, Norm
from ..decoder.sources import LAYER, SKELETON, Source, table

_NORMS = LAYER + "self_attn.{part}_layernorm.norms.{head}.weight"
WEIGHTS = {
    **SKELETON,
    **table(
        q_norm_weight=Source((_NORMS.replace("{part}", "q"),), each_head=True),
        k_norm_weight=Source((_NORMS.replace("{part}", "k"),), each_head=True),
    ),
}


def describe(config: Config) -> Decoder:
    """The decoder of a StableLM 2 or 3B config."""
    norm = skeleton.layer_norm(config)
    normed = None
    if config.take("qk_layernorm", bool, False):
        normed = HeadNorm(Norm("layer", norm.epsilon), over="heads")
    attention = skeleton.attention(
        config, partial=0.25, context=4096, qkv_bias=config.take("use_qkv_bias", bool, False), qk_norm=normed
    )
    layers = skeleton.layers(attention, skeleton.mlp(config), norm, skeleton.windows(config, skeleton.never, None))
    if config.take("use_parallel_residual", bool, False):
        layers = tuple(replace(layer, pre_mlp=None, topology="parallel") for layer in layers)
    return skeleton.decoder(config, "stablelm", layers, norm, context=4096)
