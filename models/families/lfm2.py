"""LFM2: gated short convolutions, with attention in between; lfm2 (dense) and lfm2_moe (sigmoid-routed experts)."""

from dataclasses import replace

from runtime.errors import CheckpointError

from ..decoder import skeleton
from ..decoder.config import Config
from ..decoder.description import MLP, Attention, Decoder, HeadNorm, Layer, MoE, ShortConv
from ..decoder.sources import LAYER, SKELETON, gated, linear, norm, table

_ATTN, _CONV = LAYER + "self_attn.", LAYER + "conv."

WEIGHTS = {
    **SKELETON,
    **norm("pre_attention", LAYER + "operator_norm"),
    **norm("pre_mlp", LAYER + "ffn_norm"),
    **norm("final_norm", "model.embedding_norm"),
    **norm("q_norm", _ATTN + "q_layernorm"),
    **norm("k_norm", _ATTN + "k_layernorm"),
    **linear("o", _ATTN + "out_proj"),
    **linear("conv_in", _CONV + "in_proj"),
    **linear("conv", _CONV + "conv"),
    **linear("conv_out", _CONV + "out_proj"),
    **gated("", LAYER + "feed_forward", "w1", "w3", "w2"),
    **gated("experts", LAYER + "feed_forward.experts.{e}", "w1", "w3", "w2"),
    **table(router_weight=LAYER + "feed_forward.gate.weight", correction=LAYER + "feed_forward.expert_bias"),
}


def describe(config: Config) -> Decoder:
    """`layer_types` says which layers attend; older configs list them in `full_attn_idxs`."""
    for of_other_parts in ("conv_dim", "conv_dim_out", "conv_use_xavier_init", "use_pos_enc", "theta", "block_dim"):
        config.take(of_other_parts, object, None)
    epsilon = config.take("rms_norm_eps", float, 1e-5)  # as a config made from GGUF metadata spells it
    plain = skeleton.rms(config, "norm_eps", epsilon)
    attention = skeleton.attention(config, theta=1e6, context=128000, qk_norm=HeadNorm(plain))
    bias = config.take("conv_bias", bool, False)
    conv = ShortConv(config.positive("hidden_size"), config.positive("conv_L_cache", 3), bias)
    model_type, kinds = config.take("model_type", str), _kinds(config)
    mlps = _mlps(config, model_type, len(kinds))
    layers = [
        Layer(attention if kind == "full_attention" else conv, mlp, plain, plain)
        for kind, mlp in zip(kinds, mlps, strict=True)
    ]
    _require_attention(config, layers)
    tied = config.take("tie_embedding", bool, config.take("tie_word_embeddings", bool, True))
    decoder = skeleton.decoder(config, model_type, layers, plain, tied=True, context=128000)
    return replace(decoder, tied_head=tied)


def _kinds(config: Config) -> list[str]:
    count, attending = config.positive("num_hidden_layers"), config.take("full_attn_idxs", list, None)
    default = ["full_attention" if attending is None or i in attending else "conv" for i in range(count)]
    return skeleton.layer_kinds(config, ("full_attention", "conv"), default)


def _require_attention(config: Config, layers: list[Layer]) -> None:
    if not any(isinstance(layer.attention, Attention) for layer in layers):
        raise CheckpointError(f"{config.where}: layer_types has no full_attention, but a bundle needs a KV cache.")


def _mlps(config: Config, model_type: str, count: int) -> list[MLP | MoE]:
    if model_type == "lfm2":
        return [_mlp(config)] * count
    router = skeleton.router(
        config, scores="sigmoid", correction=config.take("use_expert_bias", bool, True),
        normalize=config.take("norm_topk_prob", bool, True), scale=config.take("routed_scaling_factor", float, 1.0),
    )  # fmt: skip
    moe = MoE(router, MLP(config.positive("moe_intermediate_size", 1792), "silu"))
    dense = MLP(config.positive("intermediate_size", 7168), "silu")
    first = config.take("num_dense_layers", int, 2)
    return [dense if i < first else moe for i in range(count)]


def _mlp(config: Config) -> MLP:
    """With `block_auto_adjust_ff_dim`, I is two thirds of what is stated, times a factor, rounded up."""
    size = config.positive("block_ff_dim", config.positive("intermediate_size", 12288))
    multiple, factor = config.positive("block_multiple_of", 256), config.take("block_ffn_dim_multiplier", float, 1.0)
    config.take("block_mlp_init_scale", float, None)
    config.take("block_norm_eps", float, None)
    config.take("block_use_swiglu", bool, True)
    config.take("block_use_xavier_init", bool, None)
    if config.take("block_auto_adjust_ff_dim", bool, True):
        size = -(-int(factor * int(2 * size / 3)) // multiple) * multiple
    return MLP(size, "silu")
