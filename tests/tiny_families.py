# ruff: noqa: E501  # one case a line reads as the table it is
"""Tiny configs of every family, each of its features on in one of them, and checkpoints of random weights."""

import copy
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoConfig, AutoModelForCausalLM

BASE: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}
FACTORS = {
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
    "long_factor": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0],
}
GPT = {"vocab_size": 131, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}
GPTJ = GPT | {"n_embd": 128, "rotary_dim": 16}
SLIDING_FULL = ["sliding_attention", "full_attention"]
MOE = {"num_local_experts": 4, "num_experts_per_tok": 2}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
ROUTED = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "first_k_dense_replace": 1}
LATENT = {"q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 16}
GEMMA4 = {"head_dim": 32, "global_head_dim": 64, "num_hidden_layers": 4, "layer_types": SLIDING_FULL * 2,
          "num_kv_shared_layers": 2, "sliding_window": 8, "vocab_size_per_layer_input": 131,
          "hidden_size_per_layer_input": 8, "use_double_wide_mlp": True, "final_logit_softcapping": 5.0,
          "attention_k_eq_v": True, "num_global_key_value_heads": 1}  # fmt: skip
DELTA = {"head_dim": 32, "num_hidden_layers": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
         "linear_key_head_dim": 16, "linear_value_head_dim": 16}  # fmt: skip
MAMBA = {"layer_types": ["linear_attention", "full_attention"], "mamba_n_heads": 8, "mamba_d_state": 16,
         "mamba_n_groups": 2, "mamba_chunk_size": 8}  # fmt: skip
GRANITE = {"embedding_multiplier": 12.0, "logits_scaling": 8.0, "residual_multiplier": 0.22,
           "attention_multiplier": 0.0156}  # fmt: skip
LEARNED_BUFFERS = ("e_score_correction_bias", "layer_scalar", "expert_bias")


@dataclass(frozen=True)
class Case:
    """A tiny config that turns a family's features on. `alone`: its keys replace the base's."""

    model_type: str
    changes: dict[str, Any] = field(default_factory=dict)
    alone: bool = False
    drop: tuple[str, ...] = ()
    name: str = ""

    def __str__(self) -> str:
        return f"{self.model_type} {self.name}".strip()

    def config(self) -> dict[str, Any]:
        """A copy: transformers writes into nested settings."""
        values = self.changes if self.alone else BASE | self.changes
        return copy.deepcopy({key: value for key, value in values.items() if key not in self.drop})


CASES = [
    Case("mistral", {"head_dim": 32, "sliding_window": 8}),
    Case("mistral", {"sliding_window": None}, name="no window"),
    Case("ministral", {"head_dim": 32, "sliding_window": 8, "layer_types": SLIDING_FULL}),
    Case("ministral3", {"head_dim": 16, "rope_parameters": YARN | {
        "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}}),
    Case("cwm", {"head_dim": 16, "num_hidden_layers": 5, "sliding_window": 8}),
    Case("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1, "tie_word_embeddings": True}),
    Case("qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
    Case("qwen3", {"head_dim": 24, "attention_bias": True}, name="padded heads"),
    Case("smollm3", {"num_hidden_layers": 4, "no_rope_layer_interval": 2, "pad_token_id": 0}),
    Case("smollm3", {"num_hidden_layers": 4, "no_rope_layer_interval": 2, "pad_token_id": 0,
                     "use_sliding_window": True, "sliding_window": 8}, name="sliding"),
    Case("seed_oss", {"head_dim": 16, "attention_out_bias": False}),
    Case("internlm3", {"head_dim": 16, "attention_bias": True, "mlp_bias": True}),
    Case("ernie4_5", {"head_dim": 32, "use_bias": True}),
    Case("arcee"),
    Case("helium", {"head_dim": 16}),
    Case("gemma", {"head_dim": 32}),
    Case("gemma2", {"head_dim": 32, "query_pre_attn_scalar": 24, "sliding_window": 8, "attn_logit_softcapping": 5.0,
                    "final_logit_softcapping": 3.0}),
    Case("gemma3_text", {"head_dim": 32, "query_pre_attn_scalar": 24, "sliding_window": 8, "num_hidden_layers": 3,
                         "sliding_window_pattern": 3, "rope_theta": 1e6, "rope_local_base_freq": 1e4,
                         "rope_scaling": {"rope_type": "linear", "factor": 8.0}}),
    Case("phi", {"hidden_size": 128, "num_key_value_heads": 4, "partial_rotary_factor": 0.5, "qk_layernorm": True}),
    Case("phi3", {"hidden_size": 128, "partial_rotary_factor": 0.5, "original_max_position_embeddings": 32,
                  "rope_scaling": {"type": "longrope"} | FACTORS, "sliding_window": 16, "pad_token_id": 0}),
    Case("granite", GRANITE),
    Case("cohere", {"use_qk_norm": True, "logit_scale": 0.25}),
    Case("cohere2", {"num_hidden_layers": 4, "sliding_window": 8, "logit_scale": 0.25, "head_dim": 16}),
    Case("olmo", {"clip_qkv": 0.5}),
    Case("olmo2"),
    Case("olmo3", {"num_hidden_layers": 4, "sliding_window": 8,
                   "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}}),
    Case("exaone4", {"num_hidden_layers": 4, "sliding_window": 8, "sliding_window_pattern": 4}),
    Case("exaone4", {"num_hidden_layers": 4, "sliding_window": None, "layer_types": ["full_attention"] * 4}, name="full"),
    Case("nemotron", {"hidden_size": 128, "head_dim": 32, "partial_rotary_factor": 0.5, "attention_bias": True, "mlp_bias": True}),
    Case("stablelm", {"hidden_size": 128, "use_qkv_bias": True, "qk_layernorm": True, "partial_rotary_factor": 0.5}),
    Case("stablelm", {"hidden_size": 128, "use_parallel_residual": True, "partial_rotary_factor": 0.5}, name="parallel"),
    Case("starcoder2", {"sliding_window": 8}),
    Case("glm", {"head_dim": 32, "pad_token_id": 0}),
    Case("glm4", {"head_dim": 32, "pad_token_id": 0}),
    Case("hunyuan_v1_dense", {"head_dim": 32, "rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0}}),
    Case("gpt2", GPT | {"scale_attn_by_inverse_layer_idx": True}, alone=True),
    Case("gpt_neo", {"vocab_size": 131, "hidden_size": 64, "num_layers": 2, "num_heads": 4, "window_size": 8,
                     "attention_types": [[["global", "local"], 1]], "max_position_embeddings": 128}, alone=True),
    Case("gpt_bigcode", GPT | {"multi_query": True}, alone=True),
    Case("gpt_bigcode", GPT | {"multi_query": False}, alone=True, name="all heads"),
    Case("gptj", GPTJ, alone=True),
    Case("codegen", GPTJ, alone=True),
    Case("gpt_neox", {"hidden_size": 128, "rotary_pct": 0.5}, drop=("num_key_value_heads",)),
    Case("gpt_neox", {"rotary_pct": 0.25, "use_parallel_residual": False}, drop=("num_key_value_heads",), name="sequential"),
    Case("opt", {"ffn_dim": 96}, drop=("intermediate_size", "num_key_value_heads")),
    Case("opt", {"ffn_dim": 96, "word_embed_proj_dim": 32, "do_layer_norm_before": False},
         drop=("intermediate_size", "num_key_value_heads"), name="350m"),
    Case("bloom", {"vocab_size": 131, "hidden_size": 96, "n_layer": 2, "n_head": 6}, alone=True),
    Case("bloom", {"vocab_size": 131, "hidden_size": 64, "n_layer": 2, "n_head": 4,
                   "apply_residual_connection_post_layernorm": True}, alone=True, name="residual from norm"),
    Case("mpt", {"vocab_size": 131, "d_model": 96, "n_layers": 2, "n_heads": 6, "max_seq_len": 128}, alone=True),
    Case("falcon", {"num_kv_heads": 2, "new_decoder_architecture": True, "bias": True, "alibi": False},
         drop=("num_key_value_heads", "intermediate_size"), name="new"),
    Case("falcon", {"multi_query": True, "new_decoder_architecture": False, "parallel_attn": True},
         drop=("num_key_value_heads", "intermediate_size"), name="7b"),
    Case("falcon", {"multi_query": False, "new_decoder_architecture": False, "parallel_attn": False, "alibi": True,
                    "bias": True}, drop=("num_key_value_heads", "intermediate_size"), name="rw"),
    Case("mixtral", MOE | {"head_dim": 16}),
    Case("qwen2_moe", EXPERTS | {"shared_expert_intermediate_size": 48, "num_hidden_layers": 3, "mlp_only_layers": [2],
                                 "norm_topk_prob": False}),
    Case("qwen2_moe", EXPERTS | {"shared_expert_intermediate_size": 48, "num_hidden_layers": 4, "decoder_sparse_step": 2,
                                 "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 3,
                                 "norm_topk_prob": True}, name="sliding"),
    Case("qwen3_moe", EXPERTS | {"head_dim": 32, "norm_topk_prob": True, "mlp_only_layers": [1]}),
    Case("olmoe", {"num_experts": 4, "num_experts_per_tok": 2, "clip_qkv": 0.5}),
    Case("granitemoe", MOE | GRANITE),
    Case("granitemoeshared", MOE | GRANITE | {"shared_intermediate_size": 48}),
    Case("gpt_oss", MOE | {"head_dim": 16, "sliding_window": 8, "intermediate_size": 64}),
    Case("glm4_moe", ROUTED | {"head_dim": 32, "use_qk_norm": True, "attention_bias": True, "routed_scaling_factor": 2.5}),
    Case("ernie4_5_moe", {"moe_num_experts": 4, "moe_k": 2, "moe_num_shared_experts": 2, "moe_intermediate_size": 32,
                          "use_bias": True}),
    Case("phimoe", MOE | {"lm_head_bias": True, "attention_bias": True, "rope_scaling": {"type": "longrope",
         "short_mscale": 1.1, "long_mscale": 1.2, "original_max_position_embeddings": 32} | FACTORS}),
    Case("deepseek_v2", ROUTED | LATENT | {"n_shared_experts": 2, "topk_method": "group_limited_greedy", "n_group": 2,
         "topk_group": 1, "routed_scaling_factor": 2.0,
         "rope_scaling": YARN | {"mscale": 0.707, "mscale_all_dim": 0.707}}, drop=("num_key_value_heads",)),
    Case("deepseek_v2", ROUTED | LATENT | {"q_lora_rank": None, "v_head_dim": 24, "attention_bias": True},
         drop=("num_key_value_heads",), name="lite"),
    Case("deepseek_v3", ROUTED | LATENT | {"num_key_value_heads": 4, "n_routed_experts": 8, "n_shared_experts": 1, "n_group": 4,
         "topk_group": 2, "v_head_dim": 32, "rope_scaling": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}}),
    Case("deepseek_v3", ROUTED | LATENT | {"num_key_value_heads": 4, "n_group": 1, "topk_group": 1, "rope_interleave": False,
         "norm_topk_prob": False}, name="half rope"),
    Case("gemma3n_text", {"head_dim": 32, "num_hidden_layers": 4, "layer_types": SLIDING_FULL * 2, "num_kv_shared_layers": 2,
         "sliding_window": 8, "vocab_size_per_layer_input": 120, "hidden_size_per_layer_input": 8, "laurel_rank": 4,
         "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.5]}),
    Case("gemma4_text", GEMMA4),
    Case("gemma4_text", GEMMA4 | {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32},
         name="experts"),
    Case("gemma4_text", GEMMA4 | {"attention_k_eq_v": False, "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0},
         name="alone"),
    Case("lfm2", {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"], "block_auto_adjust_ff_dim": True,
                  "block_multiple_of": 16, "conv_bias": True}),
    Case("qwen3_next", EXPERTS | DELTA | {"shared_expert_intermediate_size": 32, "rope_parameters": {
        "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}),
    Case("qwen3_5_text", DELTA | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4,
         "partial_rotary_factor": 0.5, "mrope_section": [3, 3, 2], "mrope_interleaved": True}}),
    Case("lfm2_moe", EXPERTS | {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"], "num_dense_layers": 1,
                                "routed_scaling_factor": 1.5}),
    Case("qwen3_5_moe_text", EXPERTS | DELTA | {"shared_expert_intermediate_size": 32, "rope_parameters": {
        "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}),
    Case("dots1", ROUTED | {"head_dim": 32, "n_shared_experts": 2, "sliding_window": 8, "max_window_layers": 1}),
    Case("glm4_moe_lite", ROUTED | LATENT | {"num_key_value_heads": 4, "v_head_dim": 32}, drop=("first_k_dense_replace",)),
    Case("granitemoehybrid", MOE | GRANITE | MAMBA | {"shared_intermediate_size": 48}),
    Case("granitemoehybrid", GRANITE | MAMBA | {"num_local_experts": 0, "shared_intermediate_size": 48,
         "position_embedding_type": "rope"}, name="dense"),
    Case("jais2", {"head_dim": 16}),
    Case("apertus", {"attention_bias": True}),
    Case("nanochat", {"attention_bias": True}),
    Case("vaultgemma", {"head_dim": 32, "query_pre_attn_scalar": 24, "sliding_window": 8, "attn_logit_softcapping": 5.0,
                        "final_logit_softcapping": 3.0}),
    Case("hunyuan_v1_moe", {"head_dim": 32, "num_experts": 4, "moe_topk": 2, "attention_bias": True,
                            "rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0}}),
    Case("exaone_moe", EXPERTS | {"num_hidden_layers": 4, "sliding_window": 8, "num_shared_experts": 2, "n_group": 2,
                                  "topk_group": 1}),
    Case("cohere2_moe", {"num_experts": 4, "num_hidden_layers": 4, "head_dim": 16, "sliding_window": 8, "num_shared_experts": 2,
                         "layer_types": ["full_attention", *SLIDING_FULL, "sliding_attention"],
                         "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
                         "prefix_dense_intermediate_size": 64}),
    Case("cohere2_moe", {"num_experts": 4, "num_hidden_layers": 4, "head_dim": 16, "sliding_window": 8, "rms_norm_eps": 1e-5,
                         "expert_selection_fn": "sigmoid", "shared_expert_combination_strategy": "sum",
                         "num_shared_experts": 1}, name="sigmoid"),
    Case("mistral4", ROUTED | LATENT | {"num_key_value_heads": 4, "n_routed_experts": 8, "n_group": 4, "topk_group": 2,
         "rope_parameters": YARN | {"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
                                    "llama_4_scaling_beta": 0.1}}),
    Case("minimax_m2", MOE | {"head_dim": 32, "rotary_dim": 16}),
]  # fmt: skip


def save_random(case: Case, folder):
    """A checkpoint as transformers writes it, with every one-dimensional parameter moved off its ones and zeros."""
    torch.manual_seed(0)
    from_config = AutoModelForCausalLM.from_config
    config = AutoConfig.for_model(case.model_type, **case.config())
    # Published as the text model of a multimodal one, which is why the automatic class does not know it.
    kind = transformers.Mistral4ForCausalLM._from_config if case.model_type == "mistral4" else from_config
    model = kind(config, attn_implementation="sdpa" if case.name == "rw" else "eager", dtype=torch.float32)
    for parameter in model.parameters():
        noise = torch.randn_like(parameter)
        parameter.data.add_(noise * (0.1 if parameter.dim() == 1 else 2 / parameter.shape[-1] ** 0.5 / 4))
    for name, buffer in model.named_buffers():
        if name.endswith(LEARNED_BUFFERS):
            buffer.add_(0.1 * torch.randn_like(buffer))
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(Tokenizer(WordLevel({"<unk>": 0}, unk_token="<unk>")).to_str())
    return model.eval()
