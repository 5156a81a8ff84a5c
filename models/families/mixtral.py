"""`model_type: mixtral`: Mistral with a mixture of experts in each layer."""

from ..decoder import skeleton
from ..decoder.config import Config
from ..decoder.description import Decoder, MoE
from ..decoder.sources import LAYER, SKELETON, gated, table

_MOE = LAYER + "block_sparse_moe."

WEIGHTS = {
    **SKELETON,
    **table(router_weight=_MOE + "gate.weight"),
    **gated("experts", _MOE + "experts.{e}", "w1", "w3", "w2"),
}


def describe(config: Config) -> Decoder:
    """Every layer slides where a window is set, which no released one does."""
    config.take("router_jitter_noise", float, 0.0)  # of training
    norm = skeleton.rms(config, default=1e-5)
    attention = skeleton.attention(config, theta=1e6, context=131072)
    moe = MoE(skeleton.router(config, "num_local_experts"), skeleton.mlp(config))
    windows = skeleton.windows(config, skeleton.always, config.positive("sliding_window", None))
    layers = skeleton.layers(attention, moe, norm, windows)
    return skeleton.decoder(config, "mixtral", layers, norm, context=131072)
