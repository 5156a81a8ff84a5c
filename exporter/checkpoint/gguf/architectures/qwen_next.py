"""Qwen3-Next and Qwen 3.5."""

from collections.abc import Mapping

from ..config import Keys, Settings
from ..family import DECAY, GgufFamily, counts
from ..joined import Joined
from ..names import LAYER
from ..orders import TILED, grouped_qkvz, read_linear_heads, value_columns

_CONVOLUTION = {"ssm_conv1d.weight": 1, "ffn_gate_inp_shexp.weight": 0}
_QKVZ = {
    LAYER + "linear_attn.in_proj_qkvz.weight": Joined(
        ("attn_qkv.weight", "attn_gate.weight"), axis=0, order=grouped_qkvz
    )
}


def _linear_attention(keys: Keys) -> Settings:
    heads, settings = read_linear_heads(keys), keys.standard()
    period = keys.integer("full_attention_interval", 4)
    kinds = ["linear_attention" if (i + 1) % period else "full_attention" for i in range(keys.layers)]
    return {
        **settings,
        "layer_types": kinds,
        "linear_num_key_heads": heads.keys,
        "linear_num_value_heads": heads.values,
        "linear_key_head_dim": heads.key_size,
        "linear_value_head_dim": heads.value_size,
        "linear_conv_kernel_dim": keys.integer("ssm.conv_kernel"),
    }


def _sparse(keys: Keys) -> Settings:
    return {
        **counts(keys, "num_experts"),
        "moe_intermediate_size": keys.integer("expert_feed_forward_length"),
        "shared_expert_intermediate_size": keys.integer("expert_shared_feed_forward_length"),
    }


def _qwen3_next(keys: Keys) -> Settings:
    return {**_linear_attention(keys), **_sparse(keys), "norm_topk_prob": True}


def _qwen35_moe(keys: Keys) -> Settings:
    settings = {**_linear_attention(keys), **_sparse(keys)}
    del settings["intermediate_size"]
    return settings


ARCHITECTURES: Mapping[str, GgufFamily] = {
    "qwen3next": GgufFamily(
        "qwen3_next",
        {
            "blk.{}.ssm_dt.bias": "model.layers.{}.linear_attn.dt_bias",
        },
        _qwen3_next,
        norm_shift=-1.0,
        joined=_QKVZ,
        squeezed=_CONVOLUTION,
        functions=DECAY,
    ),
    "qwen35": GgufFamily(
        "qwen3_5_text",
        {
            "blk.{}.ssm_dt.bias": "model.layers.{}.linear_attn.dt_bias",
        },
        _linear_attention,
        TILED,
        norm_shift=-1.0,
        squeezed=_CONVOLUTION,
        columns={"ssm_out": value_columns},
        functions=DECAY,
    ),
    "qwen35moe": GgufFamily(
        "qwen3_5_moe_text",
        {
            "blk.{}.ssm_dt.bias": "model.layers.{}.linear_attn.dt_bias",
        },
        _qwen35_moe,
        TILED,
        norm_shift=-1.0,
        squeezed=_CONVOLUTION,
        columns={"ssm_out": value_columns},
        functions=DECAY,
    ),
}
