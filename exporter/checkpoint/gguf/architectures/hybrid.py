"""What each GGUF architecture with more than attention is: short convolutions, linear attention, several streams."""

from collections.abc import Mapping
from math import erf, sqrt
from typing import Any

import numpy as np

from ...checkpoint import FloatArray
from .. import layer_names as names
from ..config import Keys, Settings, present
from ..family import GgufFamily
from ..joined import Joined
from ..orders import HALVES, TILED, grouped_qkvz, read_linear_heads, value_columns
from .dense import gemma, granite
from .moe import counts


def _per_layer(keys: Keys, key: str) -> list[Any]:
    """A value for every layer, whether the file has one or many."""
    value = keys.get(key)
    return [value] * keys.layers if not isinstance(value, np.ndarray) else value[: keys.layers].tolist()


def _lfm2(keys: Keys) -> Settings:
    """Layers without key heads are convolutions."""
    settings = keys.standard()
    del settings["hidden_act"], settings["head_dim"]
    return {
        **settings,
        "norm_eps": settings.pop("rms_norm_eps"),
        "layer_types": ["full_attention" if n else "conv" for n in _per_layer(keys, "attention.head_count_kv")],
        "conv_L_cache": keys.integer("shortconv.l_cache"),
        "conv_bias": keys.has("blk.0.shortconv.conv.bias"),
        "block_auto_adjust_ff_dim": False,  # the size in the file is the adjusted one
    }


def _lfm2_moe(keys: Keys) -> Settings:
    settings = _lfm2(keys)
    del settings["block_auto_adjust_ff_dim"]
    return {
        **settings,
        **counts(keys, "num_experts"),
        "moe_intermediate_size": keys.integer("expert_feed_forward_length"),
        "num_dense_layers": keys.get("leading_dense_block_count", 0),
        "use_expert_bias": any(".exp_probs_b" in name for name in keys.file.tensors),
        "norm_topk_prob": bool(keys.get("expert_weights_norm", True)),
        "routed_scaling_factor": keys.get("expert_weights_scale") or 1.0,
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


def _gemma3n(keys: Keys) -> Settings:
    settings = gemma(keys)
    local = {"rope_type": "default", "rope_theta": keys.get("rope.freq_base_swa", 10000.0)}
    embedding = keys.file.tensors.get("per_layer_token_embd.weight")
    return {
        **settings,
        "intermediate_size": _per_layer(keys, "feed_forward_length"),
        "rope_parameters": {"full_attention": settings["rope_parameters"], "sliding_attention": local},
        "sliding_window": keys.integer("attention.sliding_window"),
        "layer_types": keys.layer_types(5),
        "num_kv_shared_layers": keys.get("attention.shared_kv_layers", 0),
        "hidden_size_per_layer_input": keys.integer("embedding_length_per_layer_input"),
        "altup_num_inputs": keys.integer("altup.num_inputs", 4),
        "altup_active_idx": keys.get("altup.active_idx", 0),
        "activation_sparsity_pattern": [_share(z) for z in _per_layer(keys, "activation_sparsity_scale")],
        "final_logit_softcapping": keys.get("final_logit_softcapping", 30.0),
        **present(
            vocab_size_per_layer_input=None if embedding is None else embedding.shape[0],
            laurel_rank=keys.file.tensors["blk.0.laurel_l.weight"].shape[0]
            if keys.has("blk.0.laurel_l.weight")
            else None,
        ),
    }


def _gemma4(keys: Keys) -> Settings:
    """Full layers have wider heads, and where they have no v, the keys are the values."""
    types, kv_heads = keys.layer_types(6), _per_layer(keys, "attention.head_count_kv")
    by_type = {kind: kv_heads[i] for i, kind in enumerate(types)}
    full = [i for i, kind in enumerate(types) if kind == "full_attention"]
    same = any(keys.has(f"blk.{i}.attn_k.weight") and not keys.has(f"blk.{i}.attn_v.weight") for i in full)
    widths = _per_layer(keys, "feed_forward_length")
    settings = gemma(keys, kv_heads=by_type.get("sliding_attention", kv_heads[0]), width=min(widths))
    embedding = keys.file.tensors.get("per_layer_token_embd.weight")
    return {
        **settings,
        "head_dim": keys.integer("attention.key_length_swa", keys.head_dim),
        "global_head_dim": keys.head_dim,
        "num_global_key_value_heads": by_type.get("full_attention"),
        "attention_k_eq_v": same,
        "use_double_wide_mlp": max(widths) > min(widths),
        "enable_moe_block": bool(keys.get("expert_count")),
        "rope_parameters": _gemma4_rope(keys),
        "sliding_window": keys.integer("attention.sliding_window"),
        "layer_types": types,
        "num_kv_shared_layers": keys.get("attention.shared_kv_layers", 0),
        "hidden_size_per_layer_input": keys.get("embedding_length_per_layer_input", 0),
        **present(
            final_logit_softcapping=keys.get("final_logit_softcapping"),
            vocab_size_per_layer_input=None if embedding is None else embedding.shape[0],
        ),
    }


def _gemma4_rope(keys: Keys) -> Settings:
    """Pairs of full layers that do not turn have enormous divisors in the file."""
    rope = keys.rope()
    factors = rope.pop("factors", [1.0])
    share = sum(factor < 1e6 for factor in factors) / len(factors)
    local = {"rope_type": "default", "rope_theta": keys.get("rope.freq_base_swa", 10000.0)}
    full = {**rope, "rope_type": "proportional", "partial_rotary_factor": share}
    return {"full_attention": full, "sliding_attention": local}


def _share(deviations: float) -> float:
    """The share of a normal distribution below so many deviations; none below none means that nothing is cut."""
    return round((1 + erf(deviations / sqrt(2))) / 2, 6) if deviations else 0.0


def _granite_hybrid(keys: Keys) -> Settings:
    """Layers without key heads are Mamba 2."""
    settings = granite(keys)
    for key in ("mlp_bias", "head_dim"):
        settings.pop(key)
    heads, inner = keys.integer("ssm.time_step_rank"), keys.integer("ssm.inner_size")
    shared = keys.get("expert_shared_feed_forward_length") or settings["intermediate_size"]
    rotary = keys.get("rope.scaling.finetuned", True)  # how this architecture says whether it rotates at all
    experts = {
        "num_local_experts": keys.get("expert_count", 0),
        "num_experts_per_tok": keys.get("expert_used_count", 0),
    }
    return {
        **settings,
        **experts,
        "shared_intermediate_size": shared,
        "layer_types": ["attention" if n else "mamba" for n in _per_layer(keys, "attention.head_count_kv")],
        "position_embedding_type": "rope" if rotary else None,
        "mamba_n_heads": heads,
        "mamba_d_head": inner // heads,
        "mamba_expand": inner // settings["hidden_size"],
        "mamba_n_groups": keys.integer("ssm.group_count"),
        "mamba_d_state": keys.integer("ssm.state_size"),
        "mamba_d_conv": keys.integer("ssm.conv_kernel"),
        "mamba_conv_bias": any(name.endswith("ssm_conv1d.bias") for name in keys.file.tensors),
        "mamba_proj_bias": any(name.endswith("ssm_in.bias") for name in keys.file.tensors),
    }


def _log_of_negative(values: FloatArray) -> FloatArray:
    """From -exp(A_log) to A_log."""
    return np.log(-values)


_LAYER = "model.layers.{}."
_DECAY = {"ssm_a": _log_of_negative}
_CONVOLUTION = {"ssm_conv1d.weight": 1, "ffn_gate_inp_shexp.weight": 0}
_QKVZ = {
    _LAYER + "linear_attn.in_proj_qkvz.weight": Joined(
        ("attn_qkv.weight", "attn_gate.weight"), axis=0, order=grouped_qkvz
    )
}
_SHARED = _LAYER + "shared_mlp.input_linear.weight"
_GRANITE = {
    _LAYER + "block_sparse_moe.input_linear.weight": Joined(("ffn_gate_exps.weight", "ffn_up_exps.weight")),
    _SHARED: Joined(("ffn_gate_shexp.weight", "ffn_up_shexp.weight"), axis=0),
}
# Without experts, what would be shared has the plain names.
GRANITE_DENSE = {_SHARED: Joined(("ffn_gate.weight", "ffn_up.weight"), axis=0)}

HYBRID: Mapping[str, GgufFamily] = {
    "lfm2": GgufFamily("lfm2", names.LFM2, _lfm2, squeezed={"shortconv.conv.weight": 1}),
    "lfm2moe": GgufFamily("lfm2_moe", names.LFM2_MOE, _lfm2_moe, squeezed={"shortconv.conv.weight": 1}),
    "qwen3next": GgufFamily(
        "qwen3_next", names.QWEN3_NEXT, _qwen3_next, norm_shift=-1.0, joined=_QKVZ, squeezed=_CONVOLUTION,
        functions=_DECAY,
    ),
    "qwen35": GgufFamily(
        "qwen3_5_text", names.QWEN35, _linear_attention, TILED, norm_shift=-1.0, squeezed=_CONVOLUTION,
        columns={"ssm_out": value_columns}, functions=_DECAY,
    ),
    "qwen35moe": GgufFamily(
        "qwen3_5_moe_text", names.QWEN35, _qwen35_moe, TILED, norm_shift=-1.0, squeezed=_CONVOLUTION,
        columns={"ssm_out": value_columns}, functions=_DECAY,
    ),
    "gemma4": GgufFamily("gemma4_text", names.GEMMA4, _gemma4),
    "gemma3n": GgufFamily("gemma3n_text", names.GEMMA3N, _gemma3n),
    "granitehybrid": GgufFamily(
        "granitemoehybrid", names.GRANITE_HYBRID, _granite_hybrid, HALVES, joined=_GRANITE,
        squeezed={"ssm_conv1d.weight": 1}, functions=_DECAY,
    ),
}  # fmt: skip
