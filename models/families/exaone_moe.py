"""`model_type: exaone_moe`: EXAONE 4's attention in Llama's layers, DeepSeek-V3's routing (K-EXAONE)."""

from dataclasses import replace

from ..decoder import skeleton
from ..decoder.config import Config
from ..decoder.description import Decoder, MoE
from ..decoder.sources import LAYER, SKELETON, gated, table
from .exaone4 import attentions

WEIGHTS = {
    **SKELETON,
    **table(router_weight=LAYER + "mlp.gate.weight", correction=LAYER + "mlp.e_score_correction_bias"),
    **gated("experts", LAYER + "mlp.experts.{e}"),
    **gated("shared", LAYER + "mlp.shared_experts"),
}


def describe(config: Config) -> Decoder:
    """`mlp_layer_types` says which layers are dense: the first, by default."""
    plain, count = skeleton.rms(config, default=1e-5), config.positive("num_hidden_layers")
    first = config.take("first_k_dense_replace", int, 1)
    kinds = config.take("mlp_layer_types", list, ["dense"] * first + ["sparse"] * (count - first))
    layers = [
        layer
        for attention in attentions(config, plain)
        for layer in skeleton.layers(attention, skeleton.mlp(config), plain, [attention.window])
    ]
    layers = list(skeleton.mixed(layers, _moe(config), lambda i: kinds[i] == "sparse"))
    return skeleton.decoder(config, "exaone_moe", layers, plain)


def _moe(config: Config) -> MoE:
    router = skeleton.router(
        config, scores="sigmoid", correction=True, group_score="top2",
        normalize=config.take("norm_topk_prob", bool, True),
        scale=config.take("routed_scaling_factor", float, 2.5),
        groups=(config.positive("n_group", 1), config.positive("topk_group", 1)),
    )  # fmt: skip
    expert, shared = skeleton.mlp(config, size="moe_intermediate_size"), config.take("num_shared_experts", int, 1)
    return MoE(router, expert, replace(expert, intermediate_size=shared * expert.intermediate_size) if shared else None)
