"""Qwen with the gated delta rule: qwen3_next, qwen3_5_text, qwen3_5_moe_text; every fourth layer attends."""

import numpy as np

from ..decoder import skeleton
from ..decoder.config import Config
from ..decoder.description import MLP, Attention, Decoder, DeltaNet, HeadNorm, Layer, MoE, Norm
from ..decoder.sources import LAYER, SKELETON, Index, Source, Table, experts, gated, linear, norm, table
from .qwen_moe import is_sparse

_ATTN, _DELTA = LAYER + "self_attn.", LAYER + "linear_attn."


def _gated_qkv(layer: Layer) -> Index:
    """Stored: per query head its queries and its gate; then keys, then values."""
    attention = layer.attends
    heads, size = attention.num_heads, attention.head_dim
    queries = np.arange(2 * heads * size).reshape(heads, 2, size)
    others = 2 * heads * size + np.arange(2 * attention.kv_heads * size)
    return np.concatenate([queries[:, 0].reshape(-1), others, queries[:, 1].reshape(-1)])


def _delta(layer: Layer) -> Index:
    """Stored: per key head its query, its key, its values and their gates; then per key head its betas and alphas."""
    about = layer.attention
    assert isinstance(about, DeltaNet)
    heads, each = about.key_heads, about.value_heads // about.key_heads
    wide = np.arange(heads * 2 * (about.key_dim + each * about.value_dim)).reshape(heads, -1)
    cuts = np.cumsum([about.key_dim, about.key_dim, each * about.value_dim])
    first = [part.reshape(-1) for part in np.split(wide, cuts, axis=1)]
    narrow = wide.size + np.arange(heads * 2 * each).reshape(heads, 2, each)
    return np.concatenate([*first, narrow[:, 0].reshape(-1), narrow[:, 1].reshape(-1)])


_SHARED: Table = {
    **SKELETON,
    **linear("qkv", *(_ATTN + f"{part}_proj" for part in "qkv"), order=_gated_qkv),
    **linear("delta_conv", _DELTA + "conv1d"),
    **norm("delta_norm", _DELTA + "norm"),
    **linear("delta_out", _DELTA + "out_proj"),
    **table(
        delta_dt_bias=_DELTA + "dt_bias",
        delta_a_log=_DELTA + "A_log",
        router_weight=LAYER + "mlp.gate.weight",
        shared_gate_weight=LAYER + "mlp.shared_expert_gate.weight",
    ),
    **experts(LAYER + "mlp.experts"),
    **gated("shared", LAYER + "mlp.shared_expert"),
}


def weights(model_type: str, _config: Config) -> Table:
    """Qwen3-Next groups its projections by key head; Qwen3.5 has one for each part."""
    if model_type == "qwen3_next":
        grouped = (_DELTA + "in_proj_qkvz.weight", _DELTA + "in_proj_ba.weight")
        return {**_SHARED, **table(delta_in_weight=Source(grouped, order=_delta))}
    return {
        **_SHARED,
        **linear("delta_in", *(_DELTA + f"in_proj_{part}" for part in ("qkv", "z", "b", "a"))),
    }


def describe(config: Config) -> Decoder:
    """`layer_types` says which layers attend; older configs state `full_attention_interval`."""
    model_type = config.take("model_type", str)
    plain = skeleton.rms(config, offset=1.0)
    mixers: dict[str, Attention | DeltaNet] = {
        "full_attention": _attention(config, plain),
        "linear_attention": _delta_net(config),
    }
    period = config.positive("full_attention_interval", 4)
    count = config.positive("num_hidden_layers")
    default = ["linear_attention" if (i + 1) % period else "full_attention" for i in range(count)]
    kinds = skeleton.layer_kinds(config, tuple(mixers), default)
    mlps = _mlps(config, model_type, len(kinds))
    layers = [Layer(mixers[kind], mlp, plain, plain) for kind, mlp in zip(kinds, mlps, strict=True)]
    return skeleton.decoder(config, model_type, layers, plain, context=32768)


def _attention(config: Config, plain: Norm) -> Attention:
    bias = config.take("attention_bias", bool, False)
    for irrelevant in ("attn_output_gate", "mlp_only_layers", "mamba_ssm_dtype", "mtp_num_hidden_layers",
                       "mtp_use_dedicated_embeddings"):  # fmt: skip
        config.take(irrelevant, object, None)
    return skeleton.attention(
        config, head_dim=256, partial=0.25, context=32768, qkv_bias=bias, output_bias=bias, qk_norm=HeadNorm(plain),
        output_gate=True,
    )  # fmt: skip


def _delta_net(config: Config) -> DeltaNet:
    skeleton.require(config, {"hidden_act": "silu"})  # of the convolution and the output's gate
    return DeltaNet(
        key_heads=config.positive("linear_num_key_heads", 16),
        key_dim=config.positive("linear_key_head_dim", 128),
        value_heads=config.positive("linear_num_value_heads", 32),
        value_dim=config.positive("linear_value_head_dim", 128),
        kernel=config.positive("linear_conv_kernel_dim", 4),
        norm=skeleton.rms(config),
    )


def _mlps(config: Config, model_type: str, count: int) -> list[MLP | MoE]:
    if model_type == "qwen3_5_moe_text":
        skeleton.require(config, {"norm_topk_prob": True})
        config.take("intermediate_size", int, None)  # of no layer
        return [_moe(config)] * count
    if model_type == "qwen3_5_text":
        return [skeleton.mlp(config)] * count
    sparse, dense, moe = is_sparse(config), skeleton.mlp(config), _moe(config)
    return [moe if sparse(i) else dense for i in range(count)]


def _moe(config: Config) -> MoE:
    router = skeleton.router(config, normalize=config.take("norm_topk_prob", bool, True))
    shared = skeleton.mlp(config, size="shared_expert_intermediate_size")
    return MoE(router, skeleton.mlp(config, size="moe_intermediate_size"), shared, shared_gate=True)
