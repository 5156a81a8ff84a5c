"""Families with more than attention come back whole from a converted file."""

from collections.abc import Callable
from typing import Any

import pytest

from models.families.registry import FAMILIES, describe

SLIDING_FULL = ["sliding_attention", "full_attention"] * 2
CONV = ["conv", "full_attention", "conv"]
KV_CONV = {"attention.head_count_kv": [0, 2, 0], "shortconv.l_cache": 3}
SPARSE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
SPARSE_KEYS = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 32}
LINEAR = {
    "head_dim": 32, "num_hidden_layers": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 6,
    "linear_key_head_dim": 16, "linear_value_head_dim": 8,
}  # fmt: skip
LINEAR_KEYS = {
    "ssm.group_count": 2, "ssm.time_step_rank": 6, "ssm.state_size": 16, "ssm.inner_size": 48, "ssm.conv_kernel": 4,
    "full_attention_interval": 4,
}  # fmt: skip
SHARED = {"shared_expert_intermediate_size": 48}
SHARED_KEYS = {"expert_shared_feed_forward_length": 48}
MAMBA = {
    "layer_types": ["mamba", "attention"], "mamba_n_heads": 8, "mamba_d_state": 16, "mamba_n_groups": 2,
    "mamba_d_head": 16, "shared_intermediate_size": 48,
}  # fmt: skip
MAMBA_KEYS = {
    "attention.head_count_kv": [0, 2], "ssm.group_count": 2, "ssm.time_step_rank": 8, "ssm.state_size": 16,
    "ssm.inner_size": 128, "ssm.conv_kernel": 4, "expert_shared_feed_forward_length": 48,
    "rope.scaling.finetuned": False,
}  # fmt: skip

CASES = {
    "lfm2": (
        "lfm2",
        "lfm2",
        {"num_hidden_layers": 3, "layer_types": CONV, "block_auto_adjust_ff_dim": False, "tie_word_embeddings": True},
        KV_CONV,
    ),
    "lfm2moe": (
        "lfm2moe",
        "lfm2_moe",
        {"num_hidden_layers": 3, "layer_types": CONV, "num_dense_layers": 1, "tie_word_embeddings": True, **SPARSE},
        {**KV_CONV, **SPARSE_KEYS, "leading_dense_block_count": 1},
    ),
    "qwen3next": (
        "qwen3next",
        "qwen3_next",
        {**LINEAR, **SPARSE, **SHARED},
        {**LINEAR_KEYS, **SPARSE_KEYS, **SHARED_KEYS},
    ),
    "qwen35": ("qwen35", "qwen3_5_text", LINEAR, LINEAR_KEYS),
    "qwen35moe": (
        "qwen35moe",
        "qwen3_5_moe_text",
        {**LINEAR, **SPARSE, **SHARED},
        {**LINEAR_KEYS, **SPARSE_KEYS, **SHARED_KEYS},
    ),
    "gemma3n": (
        "gemma3n",
        "gemma3n_text",
        {"head_dim": 32, "num_hidden_layers": 4, "layer_types": SLIDING_FULL, "num_kv_shared_layers": 2,
         "sliding_window": 8, "vocab_size_per_layer_input": 120, "hidden_size_per_layer_input": 8, "laurel_rank": 4,
         "activation_sparsity_pattern": [0.95, 0.0, 0.0, 0.95], "intermediate_size": [96] * 4,
         "tie_word_embeddings": True},
        {"attention.sliding_window": 8, "attention.sliding_window_pattern": [True, False] * 2,
         "attention.shared_kv_layers": 2, "embedding_length_per_layer_input": 8, "altup.num_inputs": 4,
         "altup.active_idx": 0, "activation_sparsity_scale": [1.6448536, 0.0, 0.0, 1.6448536],
         "rope.freq_base": 1e6, "final_logit_softcapping": 30.0},
    ),
    "gemma4": (
        "gemma4",
        "gemma4_text",
        {"head_dim": 32, "global_head_dim": 64, "num_hidden_layers": 4, "layer_types": SLIDING_FULL,
         "sliding_window": 8, "num_kv_shared_layers": 2, "vocab_size_per_layer_input": 131,
         "hidden_size_per_layer_input": 8,
         "use_double_wide_mlp": True, "final_logit_softcapping": 5.0, "attention_k_eq_v": True,
         "num_global_key_value_heads": 1, "tie_word_embeddings": True},
        {"attention.sliding_window": 8, "attention.sliding_window_pattern": [True, False] * 2,
         "attention.head_count_kv": [2, 1, 2, 1], "attention.key_length": 64, "attention.key_length_swa": 32,
         "rope.dimension_count": 64, "attention.shared_kv_layers": 2, "embedding_length_per_layer_input": 8,
         "feed_forward_length": [96, 96, 192, 192], "rope.freq_base": 1e6, "final_logit_softcapping": 5.0},
    ),
    "granitehybrid": (
        "granitehybrid",
        "granitemoehybrid",
        {**MAMBA, "num_local_experts": 4, "num_experts_per_tok": 2},
        {**MAMBA_KEYS, "expert_count": 4, "expert_used_count": 2},
    ),
    "granitehybrid without experts": (
        "granitehybrid",
        "granitemoehybrid",
        {**MAMBA, "num_local_experts": 0, "num_experts_per_tok": 0},
        MAMBA_KEYS,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_converted_model_comes_back_whole(convert: Callable[..., Any], name: str):
    both = convert(*CASES[name])
    both.compare_tensors(atol=2e-6)
    ours, theirs = both.gguf.config, both.folder.config
    renamed = {"layer_types"} if ours["model_type"] == "granitemoehybrid" else set()  # transformers has other words
    shared = ours.keys() & theirs.keys() - {"sliding_window", "head_dim"} - renamed
    assert {key: ours[key] for key in shared} == {key: theirs[key] for key in shared}
    assert ours["model_type"] == theirs["model_type"]
    if ours["model_type"] in FAMILIES:
        assert describe(ours) == describe(theirs)
