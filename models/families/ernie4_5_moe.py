"""`model_type: ernie4_5_moe`: ERNIE 4.5 whose later layers have experts, chosen by softmax plus correction."""

from dataclasses import replace

from ..decoder import skeleton
from ..decoder.config import Config
from ..decoder.description import Decoder, MoE
from ..decoder.sources import LAYER, SKELETON, Source, gated, table

WEIGHTS = {
    **SKELETON,
    **table(
        router_weight=LAYER + "mlp.gate.weight",
        correction=Source((LAYER + "mlp.moe_statics.e_score_correction_bias",), stored="row"),
    ),
    **gated("experts", LAYER + "mlp.experts.{e}"),
    **gated("shared", LAYER + "mlp.shared_experts"),
}

_FIXED = {"moe_use_aux_free": True, "moe_gate": "topk"}


def describe(config: Config) -> Decoder:
    """Layers from `moe_layer_start_index` to `moe_layer_end_index`, every `moe_layer_interval`-th, have experts."""
    skeleton.require(config, _FIXED)
    config.take("moe_norm_min", float, 1e-12)  # below any sum of softmax weights
    bias = config.take("use_bias", bool, False)
    norm, mlp = skeleton.rms(config, default=1e-5), skeleton.mlp(config, bias=bias)
    attention = skeleton.attention(config, theta=5e5, interleaved=True, context=131072, qkv_bias=bias, output_bias=bias)
    layers = skeleton.layers(attention, mlp, norm, skeleton.windows(config, skeleton.never, None))
    first, last = config.take("moe_layer_start_index", int, 1), config.take("moe_layer_end_index", int, -1)
    last, step = len(layers) - 1 if last == -1 else last, config.positive("moe_layer_interval", 1)
    layers = skeleton.mixed(layers, _moe(config, bias), lambda i: (i + 1) % step == 0 and first <= i <= last)
    return skeleton.decoder(config, "ernie4_5_moe", layers, norm, tied=True, context=131072, head_bias=bias)


def _moe(config: Config, bias: bool) -> MoE:
    """Only the shared expert has biases."""
    expert = skeleton.mlp(config, size="moe_intermediate_size")
    count = config.take("moe_num_shared_experts", int, 2)
    shared = replace(expert, intermediate_size=count * expert.intermediate_size, bias=bias) if count else None
    return MoE(skeleton.router(config, "moe_num_experts", "moe_k", correction=True), expert, shared)
