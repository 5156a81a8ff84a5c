"""Qwen with mixtures of experts: qwen2_moe (with a gated shared expert) and qwen3_moe (normed q and k)."""

from collections.abc import Callable

from ..decoder import skeleton
from ..decoder.config import Config
from ..decoder.description import Attention, Decoder, HeadNorm, MoE, Norm
from ..decoder.sources import LAYER, SKELETON, gated, table

WEIGHTS = {
    **SKELETON,
    **table(router_weight=LAYER + "mlp.gate.weight", shared_gate_weight=LAYER + "mlp.shared_expert_gate.weight"),
    **gated("experts", LAYER + "mlp.experts.{e}"),
    **gated("shared", LAYER + "mlp.shared_expert"),
}


def describe(config: Config) -> Decoder:
    """Weights of the experts taken are divided by their sum where `norm_topk_prob` says so."""
    model_type = config.take("model_type", str)
    norm = skeleton.rms(config)
    attention = _attention(config, model_type, norm)
    layers = skeleton.layers(attention, skeleton.mlp(config), norm, _windows(config, model_type))
    layers = skeleton.mixed(layers, _moe(config, model_type), is_sparse(config))
    return skeleton.decoder(config, model_type, layers, norm, context=32768)


def _attention(config: Config, model_type: str, norm: Norm) -> Attention:
    if model_type == "qwen2_moe":
        return skeleton.attention(config, context=32768, qkv_bias=config.take("qkv_bias", bool, True))
    bias = config.take("attention_bias", bool, False)
    return skeleton.attention(config, context=32768, qkv_bias=bias, output_bias=bias, qk_norm=HeadNorm(norm))


def _moe(config: Config, model_type: str) -> MoE:
    router = skeleton.router(config, normalize=config.take("norm_topk_prob", bool, False))
    expert = skeleton.mlp(config, size="moe_intermediate_size")
    if model_type == "qwen3_moe":
        return MoE(router, expert)
    return MoE(router, expert, skeleton.mlp(config, size="shared_expert_intermediate_size"), shared_gate=True)


def is_sparse(config: Config) -> Callable[[int], bool]:
    """Which layers have experts: every `decoder_sparse_step`-th, but for `mlp_only_layers`."""
    step, dense = config.positive("decoder_sparse_step", 1), config.take("mlp_only_layers", list, [])
    return lambda layer: layer not in dense and (layer + 1) % step == 0


def _windows(config: Config, model_type: str) -> list[int | None]:
    """qwen2_moe: every other layer below `max_window_layers` slides; qwen3_moe: all; both only if told to."""
    sliding = config.take("use_sliding_window", bool, False)
    window, last = config.take("sliding_window", int, 4096), config.take("max_window_layers", int, 28)
    if model_type == "qwen2_moe":
        return skeleton.windows(config, lambda i: sliding and i % 2 == 0 and i < last, window if sliding else None)
    return skeleton.windows(config, lambda _: sliding, window if sliding else None)
