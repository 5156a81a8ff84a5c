"""GGUF tensor names of families whose layers hold more than dense attention and MLP; the form is that of gguf_names."""

from .names import GEMMA2, LAYER, LLAMA, QK_NORM, QWEN3, Names, in_layers

# Experts, stacked in GGUF and apart in Hugging Face.
MIXTRAL: Names = {
    **LLAMA,
    **in_layers(
        LAYER + "block_sparse_moe.",
        ffn_gate_inp="gate",
        ffn_gate_exps="experts.{e}.w1",
        ffn_up_exps="experts.{e}.w3",
        ffn_down_exps="experts.{e}.w2",
    ),
}
MINIMAX_M2: Names = {
    **MIXTRAL,
    **QK_NORM,
    **in_layers(LAYER, {"exp_probs_b.bias": "block_sparse_moe.e_score_correction_bias"}),
}
_EXPERTS: Names = in_layers(
    LAYER + "mlp.",
    ffn_gate_inp="gate",
    ffn_gate_exps="experts.{e}.gate_proj",
    ffn_up_exps="experts.{e}.up_proj",
    ffn_down_exps="experts.{e}.down_proj",
)


def _shared(module: str) -> Names:
    return in_layers(
        f"{LAYER}mlp.{module}.", ffn_gate_shexp="gate_proj", ffn_up_shexp="up_proj", ffn_down_shexp="down_proj"
    )


QWEN2_MOE: Names = {
    **LLAMA,
    **_EXPERTS,
    **_shared("shared_expert"),
    **in_layers(LAYER, ffn_gate_inp_shexp="mlp.shared_expert_gate"),
}
QWEN3_MOE: Names = {**QWEN3, **_EXPERTS}
DEEPSEEK: Names = {
    **LLAMA,
    **_EXPERTS,
    **_shared("shared_experts"),
    **in_layers(
        LAYER,
        {"exp_probs_b.bias": "mlp.gate.e_score_correction_bias"},
        attn_q_a="self_attn.q_a_proj",
        attn_q_a_norm="self_attn.q_a_layernorm",
        attn_q_b="self_attn.q_b_proj",
        attn_kv_a_mqa="self_attn.kv_a_proj_with_mqa",
        attn_kv_a_norm="self_attn.kv_a_layernorm",
        attn_kv_b="self_attn.kv_b_proj",
    ),
}
GLM4_MOE: Names = {**DEEPSEEK, **QK_NORM, **in_layers(LAYER, post_attention_norm="post_attention_layernorm")}
ERNIE_MOE: Names = {
    **LLAMA,
    **_EXPERTS,
    **_shared("shared_experts"),
    **in_layers(LAYER, {"exp_probs_b.bias": "mlp.moe_statics.e_score_correction_bias"}),
}
GRANITE_MOE: Names = {
    **LLAMA,
    **in_layers(
        LAYER,
        ffn_gate_inp="block_sparse_moe.router.layer",
        ffn_down_exps="block_sparse_moe.output_linear",
        ffn_down_shexp="shared_mlp.output_linear",
    ),
}
GPT_OSS: Names = {
    **LLAMA,
    **in_layers(
        LAYER,
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
        LAYER,
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
        LAYER + "feed_forward.",
        {"exp_probs_b.": "expert_bias", "exp_probs_b.bias": "expert_bias"},
        ffn_gate_inp="gate",
        ffn_gate_exps="experts.{e}.w1",
        ffn_up_exps="experts.{e}.w3",
        ffn_down_exps="experts.{e}.w2",
    ),
}
_LINEAR = in_layers(
    LAYER,
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
    **in_layers(LAYER, ssm_in="linear_attn.in_proj_qkvz", ssm_ba="linear_attn.in_proj_ba"),
}
QWEN35: Names = {
    **QWEN2_MOE,
    **QK_NORM,
    **_LINEAR,
    **in_layers(
        LAYER,
        attn_qkv="linear_attn.in_proj_qkv",
        attn_gate="linear_attn.in_proj_z",
        ssm_beta="linear_attn.in_proj_b",
        ssm_alpha="linear_attn.in_proj_a",
    ),
}
# Inputs for each layer, and what each layer does with them.
_LAYER_INPUTS: Names = {
    "per_layer_token_embd": "model.embed_tokens_per_layer",
    "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
    **in_layers(
        LAYER, inp_gate="per_layer_input_gate", proj="per_layer_projection", post_norm="post_per_layer_input_norm"
    ),
}
GEMMA4: Names = {
    **GEMMA2,
    **_LAYER_INPUTS,
    **in_layers(LAYER, dict.fromkeys(("layer_output_scale.", "layer_output_scale.weight"), "layer_scalar")),
}
GEMMA3N: Names = {
    **GEMMA2,
    **_LAYER_INPUTS,
    "altup_proj": "model.altup_projections.{e}",
    "altup_unembd_proj": "model.altup_unembed_projections.{e}",
    **in_layers(
        LAYER,
        dict.fromkeys(("altup_correct_scale.", "altup_correct_scale.weight"), "altup.correct_output_scale"),
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
        LAYER,
        {"ssm_a.": "mamba.A_log", "ssm_d.": "mamba.D", "ssm_dt.bias": "mamba.dt_bias"},
        ssm_in="mamba.in_proj",
        ssm_conv1d="mamba.conv1d",
        ssm_norm="mamba.norm",
        ssm_out="mamba.out_proj",
        ffn_down="shared_mlp.output_linear",
    ),
}
