"""Latent attention, and experts chosen within groups: DeepSeek 2 and 3 (V3, R1, Moonlight), GLM 4 Lite, Mistral 4."""

import math
from dataclasses import replace

import numpy as np

from runtime.errors import UnsupportedError

from ..decoder import skeleton
from ..decoder.config import Config
from ..decoder.description import Attention, Decoder, Latent, Layer, MoE, Norm
from ..decoder.rope import read_rope
from ..decoder.sources import LAYER, SKELETON, Index, Source, Table, experts, gated, linear, norm, table

_ATTN = LAYER + "self_attn."


def _key_rows(layer: Layer) -> Index:
    return _rows(layer.attends)[0]


def _value_rows(layer: Layer) -> Index:
    return _rows(layer.attends)[1]


def _rows(attention: Attention) -> tuple[Index, Index]:
    """kv_b_proj has each head's rows for keys, then its rows for values."""
    assert attention.latent is not None
    latent, heads = attention.latent, attention.num_heads
    rows = np.arange(heads * (latent.nope + latent.value)).reshape(heads, -1)
    return rows[:, : latent.nope].reshape(-1), rows[:, latent.nope :].reshape(-1)


LATENT: Table = {
    **linear("q", _ATTN + "q_proj"),
    **linear("q_a", _ATTN + "q_a_proj"),
    **norm("q_a_norm", _ATTN + "q_a_layernorm"),
    **linear("q_b", _ATTN + "q_b_proj"),
    **linear("kv_a", _ATTN + "kv_a_proj_with_mqa"),
    **norm("kv_a_norm", _ATTN + "kv_a_layernorm"),
    **table(
        k_up=Source((_ATTN + "kv_b_proj.weight",), order=_key_rows),
        v_up=Source((_ATTN + "kv_b_proj.weight",), order=_value_rows),
    ),
}

WEIGHTS: Table = {
    **SKELETON,
    **LATENT,
    **table(router_weight=LAYER + "mlp.gate.weight", correction=LAYER + "mlp.gate.e_score_correction_bias"),
    **experts(LAYER + "mlp.experts"),
    **gated("shared", LAYER + "mlp.shared_experts"),
}


def describe(config: Config) -> Decoder:
    """The first layers are dense."""
    model_type = config.take("model_type", str)
    if model_type in _OTHERS:
        return _OTHERS[model_type](config)
    second = model_type == "deepseek_v2"
    plain, dense = skeleton.rms(config), config.take("first_k_dense_replace", int, 0 if second else 3)
    attention = latent_attention(config, 2048 if second else 4096)
    mlp = skeleton.mlp(config, bias=config.take("mlp_bias", bool, False) if second else False)
    layers = skeleton.layers(attention, mlp, plain, skeleton.windows(config, skeleton.never, None))
    moe = _second_moe(config) if second else skeleton.corrected_moe(config, scale=2.5, groups=8)
    layers = skeleton.mixed(layers, moe, lambda i: i >= dense)
    return skeleton.decoder(config, model_type, layers, plain, context=2048 if second else 4096)


def _glm(config: Config) -> Decoder:
    """`mlp_layer_types` says which layers are dense: the first, by default."""
    plain, count = skeleton.rms(config, default=1e-5), config.positive("num_hidden_layers")
    first = config.take("first_k_dense_replace", int, 1)
    kinds = config.take("mlp_layer_types", list, ["dense"] * first + ["sparse"] * (count - first))
    attention = latent_attention(config, 202752, nope=192, value=256, query_rank=768)
    layers = skeleton.layers(attention, skeleton.mlp(config), plain, [None] * count)
    layers = skeleton.mixed(layers, skeleton.corrected_moe(config, scale=1.8), lambda i: kinds[i] == "sparse")
    return skeleton.decoder(config, "glm4_moe_lite", layers, plain, context=202752)


def _mistral(config: Config) -> Decoder:
    """Queries grow with their position; experts are chosen by softmax, in the groups with the best two."""
    plain, dense = skeleton.rms(config), config.take("first_k_dense_replace", int, 0)
    # `partial_rotary_factor` is the share of a whole head that `qk_rope_head_dim` states already.
    attention = latent_attention(config, 1048576, nope=64, query_rank=1024, rank=256, whole=True)
    rope = config.take("rope_parameters", dict, {})
    if rope.get("llama_4_scaling_beta"):
        growth = float(rope["llama_4_scaling_beta"]), int(rope["original_max_position_embeddings"])
        attention = replace(attention, query_growth=growth)
    layers = skeleton.layers(attention, skeleton.mlp(config), plain, skeleton.windows(config, skeleton.never, None))
    router = skeleton.router(
        config, "n_routed_experts", group_score="top2", normalize=config.take("norm_topk_prob", bool, True),
        scale=config.take("routed_scaling_factor", float, 1.0),
        groups=(config.positive("n_group", 1), config.positive("topk_group", 1)),
    )  # fmt: skip
    moe = MoE(router, skeleton.mlp(config, size="moe_intermediate_size"), skeleton.shared_experts(config))
    return skeleton.decoder(
        config, "mistral4", skeleton.mixed(layers, moe, lambda i: i >= dense), plain, context=1048576
    )


_OTHERS = {"glm4_moe_lite": _glm, "mistral4": _mistral}


def latent_attention(
    config: Config,
    context: int,
    nope: int = 128,
    value: int = 128,
    query_rank: int = 1536,
    rank: int = 512,
    *,
    whole: bool = False,
) -> Attention:
    """Latent attention as the config says; the defaults are the family's, `whole` as of `read_rope`."""
    for implied in ("head_dim", "qk_head_dim", "num_key_value_heads"):
        config.take(implied, int, None)
    rank, rotary = config.positive("kv_lora_rank", rank), config.positive("qk_rope_head_dim", 64)
    if rotary % 16 or rank % 16:
        raise UnsupportedError(
            f"{config.where}: kv_lora_rank and qk_rope_head_dim must be multiples of 16, got {rank} and {rotary}."
        )
    latent = Latent(
        rank=rank,
        nope=config.positive("qk_nope_head_dim", nope),
        value=config.positive("v_head_dim", value),
        query_rank=config.positive("q_lora_rank", None if "q_lora_rank" in config.values else query_rank),
        norm=Norm("rms", 1e-6),
        bias=config.take("attention_bias", bool, False),
    )
    rope = read_rope(config, rotary, skeleton.context_length(config, context), whole=whole)
    rope = replace(rope, interleaved=config.take("rope_interleave", bool, True))
    scale = (latent.nope + rotary) ** -0.5 * _magnitude(config) ** 2
    heads = config.positive("num_attention_heads")
    return Attention(heads, 1, rotary + rank, rope, scale=scale, latent=latent)


def _magnitude(config: Config) -> float:
    """What scaled ropes multiply queries and keys by: YaRN's attention factor, by `mscale_all_dim`."""
    settings = config.take("rope_parameters", dict, None) or config.take("rope_scaling", dict, {})
    factor, share = float(settings.get("factor") or 1), float(settings.get("mscale_all_dim") or 0)
    scaled = settings.get("rope_type", settings.get("type", "default")) != "default"
    return 0.1 * share * math.log(factor) + 1 if scaled and share and factor > 1 else 1.0


def _second_moe(config: Config) -> MoE:
    """DeepSeek-V2: softmax, of the groups with the best experts; weights are not divided by their sum."""
    skeleton.require(config, {"norm_topk_prob": False, "scoring_func": "softmax", "moe_layer_freq": 1})
    grouped = config.choice("topk_method", {"greedy": False, "group_limited_greedy": True}, "greedy")
    groups = config.positive("n_group", 1), config.positive("topk_group", 1)
    router = skeleton.router(
        config, "n_routed_experts", normalize=False, groups=groups if grouped else (1, 1),
        scale=config.take("routed_scaling_factor", float, 1.0),
    )  # fmt: skip
    return MoE(router, skeleton.mlp(config, size="moe_intermediate_size"), skeleton.shared_experts(config, 2))
