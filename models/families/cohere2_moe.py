"""`model_type: cohere2_moe`: Cohere 2's parallel layers with experts; the first layers may be dense (Command A+)."""

from dataclasses import replace

from runtime.errors import CheckpointError

from ..decoder import skeleton
from ..decoder.config import Config
from ..decoder.description import Attention, Decoder, MoE, Norm
from ..decoder.sources import LAYER, SKELETON, gated, table

WEIGHTS = {
    **SKELETON,
    **table(router_weight=LAYER + "mlp.gate.weight"),
    **gated("experts", LAYER + "mlp.experts.{e}"),
    **gated("shared", LAYER + "mlp.shared_experts"),
}


def describe(config: Config) -> Decoder:
    """Sliding layers have rope, and dense ones where `prefix_dense_sliding_window_pattern` is 1."""
    plain, dense = _norm(config), _dense_layers(config)
    moe = _moe(config)
    mlp = skeleton.mlp(config, size="prefix_dense_intermediate_size") if any(dense) else moe
    layers = [
        replace(layer, pre_mlp=None, topology="parallel")
        for attention, is_dense in zip(_attentions(config, dense), dense, strict=True)
        for layer in skeleton.layers(attention, mlp if is_dense else moe, plain, [attention.window])
    ]
    scale = config.take("logit_scale", float, 0.0625)
    return skeleton.decoder(config, "cohere2_moe", layers, plain, tied=True, context=8192, logit_scale=scale)


def _norm(config: Config) -> Norm:
    """RMS where `rms_norm_eps` is set, else a LayerNorm without bias."""
    by_mean = skeleton.layer_norm(config, bias=False)
    epsilon = config.take("rms_norm_eps", float, None)
    return by_mean if epsilon is None else Norm("rms", epsilon)


def _dense_layers(config: Config) -> list[bool]:
    count, first = config.positive("num_hidden_layers"), config.take("first_k_dense_replace", int, 0)
    kinds = config.take("mlp_layer_types", list, ["dense"] * first + ["sparse"] * (count - first))
    if len(kinds) != count or set(kinds) - {"dense", "sparse"}:
        raise CheckpointError(
            f"{config.where}: mlp_layer_types must name dense or sparse for each of {count} layers, got {kinds!r}."
        )
    return [kind == "dense" for kind in kinds]


def _attentions(config: Config, dense: list[bool]) -> list[Attention]:
    bias = config.take("attention_bias", bool, False)
    base = skeleton.attention(config, head_dim=128, interleaved=True, context=8192, qkv_bias=bias, output_bias=bias)
    first = config.take("first_k_dense_replace", int, 0)
    prefix, period = (
        config.positive("prefix_dense_sliding_window_pattern", 1),
        config.positive("sliding_window_pattern", 4),
    )

    def slides(layer: int) -> bool:
        return (layer + 1) % prefix != 0 if layer < first else (layer - first + 1) % period != 0

    windows = skeleton.windows(config, slides, config.positive("sliding_window", 4096))
    return [
        replace(base, window=window, rope=base.rope if window or (prefix == 1 and is_dense) else None)
        for window, is_dense in zip(windows, dense, strict=True)
    ]


def _moe(config: Config) -> MoE:
    """A softmax over the experts taken is one over all, divided by their sum."""
    scores = config.choice("expert_selection_fn", {"softmax": "softmax", "sigmoid": "sigmoid"}, "softmax")
    normalize = config.take("norm_topk_prob", bool, True) or scores == "softmax"
    router = skeleton.router(config, scores=scores, normalize=normalize)
    expert, count = skeleton.mlp(config), config.take("num_shared_experts", int, 0)
    shared = replace(expert, intermediate_size=count * expert.intermediate_size) if count else None
    share = config.choice("shared_expert_combination_strategy", {"average": 0.5, "sum": 1.0}, "average")
    return MoE(router, expert, shared, scale=share if count else 1.0)
