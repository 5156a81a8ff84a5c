"""GGUF tensor names to Hugging Face names, one table per family; {} is the layer.

Names are without their ending: `.weight` and `.bias` are carried over. A row with an ending, or with a dot at its end
where the tensor has none, is the whole name. Several names: the rows are q, k and v of attention. {e} in a name: one
tensor per entry of the first dimension.
"""

import re
from collections.abc import Mapping

Names = Mapping[str, str | tuple[str, ...]]

_LAYER = "model.layers.{}."


def in_layers(prefix: str, rows: Mapping[str, str] | None = None, **names: str) -> dict[str, str]:
    """Rows `blk.{}.<key>` → `<prefix><value>`."""
    return {f"blk.{{}}.{key}": prefix + name for key, name in {**(rows or {}), **names}.items()}


LLAMA: Names = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    **in_layers(
        _LAYER,
        attn_norm="input_layernorm",
        attn_q="self_attn.q_proj",
        attn_k="self_attn.k_proj",
        attn_v="self_attn.v_proj",
        attn_output="self_attn.o_proj",
        ffn_norm="post_attention_layernorm",
        ffn_gate="mlp.gate_proj",
        ffn_up="mlp.up_proj",
        ffn_down="mlp.down_proj",
    ),
}
SPLIT_QKV: Names = {"blk.{}.attn_qkv": tuple(f"{_LAYER}self_attn.{part}_proj" for part in "qkv")}
QK_NORM: Names = in_layers(_LAYER, attn_q_norm="self_attn.q_norm", attn_k_norm="self_attn.k_norm")
# Norms on the outputs of attention and MLP, as OLMo 2 names them.
OUTPUT_NORMS: Names = in_layers(
    _LAYER, post_attention_norm="post_attention_layernorm", post_ffw_norm="post_feedforward_layernorm"
)

QWEN3: Names = {**LLAMA, **QK_NORM}
GEMMA2: Names = {**LLAMA, **QK_NORM, **OUTPUT_NORMS, **in_layers(_LAYER, ffn_norm="pre_feedforward_layernorm")}
OLMO2: Names = {**LLAMA, **QK_NORM, **OUTPUT_NORMS}
PHI3: Names = {**LLAMA, **in_layers(_LAYER, attn_qkv="self_attn.qkv_proj", ffn_up="mlp.gate_up_proj")}
PHI: Names = {
    **LLAMA,
    **SPLIT_QKV,
    "output_norm": "model.final_layernorm",
    **in_layers(_LAYER, attn_output="self_attn.dense", ffn_up="mlp.fc1", ffn_down="mlp.fc2"),
}
STARCODER2: Names = {**LLAMA, **in_layers(_LAYER, ffn_up="mlp.c_fc", ffn_down="mlp.c_proj")}
STABLELM: Names = {
    **LLAMA,
    **in_layers(_LAYER, attn_q_norm="self_attn.q_layernorm.norms.{e}", attn_k_norm="self_attn.k_layernorm.norms.{e}"),
}
# The norm before the MLP has the name of one after attention.
SEED_OSS: Names = {**LLAMA, **in_layers(_LAYER, post_attention_norm="post_attention_layernorm")}
HUNYUAN: Names = {
    **LLAMA,
    **in_layers(_LAYER, attn_q_norm="self_attn.query_layernorm", attn_k_norm="self_attn.key_layernorm"),
}
GLM: Names = {
    **LLAMA,
    **SPLIT_QKV,
    **in_layers(
        _LAYER,
        ffn_up="mlp.gate_up_proj",
        post_attention_norm="post_self_attn_layernorm",
        post_ffw_norm="post_mlp_layernorm",
    ),
}
GPT2: Names = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
    **in_layers(
        "transformer.h.{}.",
        attn_norm="ln_1",
        attn_qkv="attn.c_attn",
        attn_output="attn.c_proj",
        ffn_norm="ln_2",
        ffn_up="mlp.c_fc",
        ffn_down="mlp.c_proj",
    ),
}
_DENSE = {"ffn_up": "mlp.dense_h_to_4h", "ffn_down": "mlp.dense_4h_to_h"}
GPT_NEOX: Names = {
    "token_embd": "gpt_neox.embed_in",
    "output_norm": "gpt_neox.final_layer_norm",
    "output": "embed_out",
    **in_layers(
        "gpt_neox.layers.{}.",
        _DENSE,
        attn_norm="input_layernorm",
        attn_qkv="attention.query_key_value",
        attn_output="attention.dense",
        ffn_norm="post_attention_layernorm",
    ),
}
BLOOM: Names = {
    "token_embd": "transformer.word_embeddings",
    "token_embd_norm": "transformer.word_embeddings_layernorm",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
    **in_layers(
        "transformer.h.{}.",
        _DENSE,
        attn_norm="input_layernorm",
        attn_qkv="self_attention.query_key_value",
        attn_output="self_attention.dense",
        ffn_norm="post_attention_layernorm",
    ),
}
FALCON: Names = BLOOM
# Falcon 40B has two norms before its branches; GGUF calls that of attention the second.
FALCON_40B: Names = {**BLOOM, **in_layers("transformer.h.{}.", attn_norm="ln_mlp", attn_norm_2="ln_attn")}
MPT: Names = {
    "token_embd": "transformer.wte",
    "output_norm": "transformer.norm_f",
    "output": "lm_head",
    **in_layers(
        "transformer.blocks.{}.",
        attn_norm="norm_1",
        attn_qkv="attn.Wqkv",
        attn_output="attn.out_proj",
        ffn_norm="norm_2",
        ffn_up="ffn.up_proj",
        ffn_down="ffn.down_proj",
    ),
}

# Experts, stacked in GGUF and apart in Hugging Face.
MIXTRAL: Names = {
    **LLAMA,
    **in_layers(
        _LAYER + "block_sparse_moe.",
        ffn_gate_inp="gate",
        ffn_gate_exps="experts.{e}.w1",
        ffn_up_exps="experts.{e}.w3",
        ffn_down_exps="experts.{e}.w2",
    ),
}
MINIMAX_M2: Names = {
    **MIXTRAL,
    **QK_NORM,
    **in_layers(_LAYER, {"exp_probs_b.bias": "block_sparse_moe.e_score_correction_bias"}),
}
_EXPERTS: Names = in_layers(
    _LAYER + "mlp.",
    ffn_gate_inp="gate",
    ffn_gate_exps="experts.{e}.gate_proj",
    ffn_up_exps="experts.{e}.up_proj",
    ffn_down_exps="experts.{e}.down_proj",
)


def _shared(module: str) -> Names:
    return in_layers(
        f"{_LAYER}mlp.{module}.", ffn_gate_shexp="gate_proj", ffn_up_shexp="up_proj", ffn_down_shexp="down_proj"
    )


QWEN2_MOE: Names = {
    **LLAMA,
    **_EXPERTS,
    **_shared("shared_expert"),
    **in_layers(_LAYER, ffn_gate_inp_shexp="mlp.shared_expert_gate"),
}
QWEN3_MOE: Names = {**QWEN3, **_EXPERTS}
DEEPSEEK: Names = {
    **LLAMA,
    **_EXPERTS,
    **_shared("shared_experts"),
    **in_layers(
        _LAYER,
        {"exp_probs_b.bias": "mlp.gate.e_score_correction_bias"},
        attn_q_a="self_attn.q_a_proj",
        attn_q_a_norm="self_attn.q_a_layernorm",
        attn_q_b="self_attn.q_b_proj",
        attn_kv_a_mqa="self_attn.kv_a_proj_with_mqa",
        attn_kv_a_norm="self_attn.kv_a_layernorm",
        attn_kv_b="self_attn.kv_b_proj",
    ),
}
GLM4_MOE: Names = {**DEEPSEEK, **QK_NORM, **in_layers(_LAYER, post_attention_norm="post_attention_layernorm")}
ERNIE_MOE: Names = {
    **LLAMA,
    **_EXPERTS,
    **_shared("shared_experts"),
    **in_layers(_LAYER, {"exp_probs_b.bias": "mlp.moe_statics.e_score_correction_bias"}),
}
GRANITE_MOE: Names = {
    **LLAMA,
    **in_layers(
        _LAYER,
        ffn_gate_inp="block_sparse_moe.router.layer",
        ffn_down_exps="block_sparse_moe.output_linear",
        ffn_down_shexp="shared_mlp.output_linear",
    ),
}
GPT_OSS: Names = {
    **LLAMA,
    **in_layers(
        _LAYER,
        {
            "attn_sinks.weight": "self_attn.sinks",
            "ffn_down_exps.weight": "mlp.experts.down_proj",
            "ffn_down_exps.bias": "mlp.experts.down_proj_bias",
        },
        post_attention_norm="post_attention_layernorm",
        ffn_gate_inp="mlp.router",
    ),
}

LFM2: Names = {
    **LLAMA,
    "output_norm": "model.embedding_norm",
    "token_embd_norm": "model.embedding_norm",  # what older files call the same
    **in_layers(
        _LAYER,
        {"shortconv.conv": "conv.conv", "shortconv.in_proj": "conv.in_proj", "shortconv.out_proj": "conv.out_proj"},
        attn_norm="operator_norm",
        attn_output="self_attn.out_proj",
        attn_q_norm="self_attn.q_layernorm",
        attn_k_norm="self_attn.k_layernorm",
        ffn_norm="ffn_norm",
        ffn_gate="feed_forward.w1",
        ffn_up="feed_forward.w3",
        ffn_down="feed_forward.w2",
    ),
}
LFM2_MOE: Names = {
    **LFM2,
    **in_layers(
        _LAYER + "feed_forward.",
        {"exp_probs_b.": "expert_bias", "exp_probs_b.bias": "expert_bias"},
        ffn_gate_inp="gate",
        ffn_gate_exps="experts.{e}.w1",
        ffn_up_exps="experts.{e}.w3",
        ffn_down_exps="experts.{e}.w2",
    ),
}
_LINEAR = in_layers(
    _LAYER,
    {"ssm_a.": "linear_attn.A_log", "ssm_dt.bias": "linear_attn.dt_bias"},
    ssm_conv1d="linear_attn.conv1d",
    ssm_norm="linear_attn.norm",
    ssm_out="linear_attn.out_proj",
    post_attention_norm="post_attention_layernorm",
)
QWEN3_NEXT: Names = {
    **QWEN2_MOE,
    **QK_NORM,
    **_LINEAR,
    **in_layers(_LAYER, ssm_in="linear_attn.in_proj_qkvz", ssm_ba="linear_attn.in_proj_ba"),
}
QWEN35: Names = {
    **QWEN2_MOE,
    **QK_NORM,
    **_LINEAR,
    **in_layers(
        _LAYER,
        attn_qkv="linear_attn.in_proj_qkv",
        attn_gate="linear_attn.in_proj_z",
        ssm_beta="linear_attn.in_proj_b",
        ssm_alpha="linear_attn.in_proj_a",
    ),
}
GEMMA3N: Names = {
    **GEMMA2,
    "per_layer_token_embd": "model.embed_tokens_per_layer",
    "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
    "altup_proj": "model.altup_projections.{e}",
    "altup_unembd_proj": "model.altup_unembed_projections.{e}",
    **in_layers(
        _LAYER,
        dict.fromkeys(("altup_correct_scale.", "altup_correct_scale.weight"), "altup.correct_output_scale"),
        inp_gate="per_layer_input_gate",
        proj="per_layer_projection",
        post_norm="post_per_layer_input_norm",
        altup_correct_coef="altup.correction_coefs",
        altup_predict_coef="altup.prediction_coefs",
        altup_router="altup.modality_router",
        altup_router_norm="altup.router_norm",
        laurel_l="laurel.linear_left",
        laurel_r="laurel.linear_right",
        laurel_post_norm="laurel.post_laurel_norm",
    ),
}
GRANITE_HYBRID: Names = {
    **GRANITE_MOE,
    **in_layers(
        _LAYER,
        {"ssm_a.": "mamba.A_log", "ssm_d.": "mamba.D", "ssm_dt.bias": "mamba.dt_bias"},
        ssm_in="mamba.in_proj",
        ssm_conv1d="mamba.conv1d",
        ssm_norm="mamba.norm",
        ssm_out="mamba.out_proj",
        ffn_down="shared_mlp.output_linear",
    ),
}

# Read by the configuration, not weights: rotary frequency factors.
NOT_WEIGHTS = re.compile(r"^(rope_freqs|rope_factors_(long|short))\.weight$|\.(attn_rot_embd|rope_freqs)\.weight$")


def hugging_face_names(stored: str, names: Names) -> tuple[str, ...]:
    """`blk.3.attn_q.weight` to `model.layers.3.self_attn.q_proj.weight`; empty for a name that the table lacks."""
    match = re.fullmatch(r"(?:blk\.(\d+)\.)?(.+?)(?:\.(weight|bias))?", stored)
    if match is None:
        return ()
    layer, stem, ending = match.groups()
    key = stem if layer is None else f"blk.{{}}.{stem}"
    whole, found = names.get(f"{key}.{ending or ''}"), names.get(key, ())
    if isinstance(whole, str):
        return (whole.replace("{}", layer or ""),)
    targets = (found,) if isinstance(found, str) else found
    return tuple(f"{target.replace('{}', layer or '')}.{ending}" for target in targets)
