"""Every dense family that GGUF knows comes back whole from a converted file: configuration and tensors."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from exporter.checkpoint import open_checkpoint
from exporter.checkpoint.gguf.registry import FAMILIES
from models.families.registry import describe

GPT = {"vocab_size": 131, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}
LONGROPE = {
    "attention_factor": 1.25,
    "type": "longrope",
    "short_factor": [1.0 + i / 8 for i in range(8)],
    "long_factor": [1.0 + i for i in range(8)],
}


def case(
    architecture: str, model_type: str, changes: dict[str, Any] | None = None, metadata: dict[str, Any] | None = None,
    *, alone: bool = False, name: str = "",
) -> Any:  # fmt: skip
    """`changes` to the base config, or all of it if `alone`; `metadata` beside the keys that every family has."""
    label = f"{architecture} {model_type} {name}".strip()
    return pytest.param(architecture, model_type, changes or {}, metadata or {}, alone, id=label)


CASES = [
    case("llama", "llama", {"attention_bias": True, "mlp_bias": True}),
    case(
        "mistral3",
        "ministral3",
        {
            "head_dim": 16,
            "sliding_window": None,
            "rope_parameters": YARN
            | {"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1},
        },
        {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 32,
            "rope.scaling.yarn_log_multiplier": 0.1,
            "attention.temperature_scale": 0.1,
        },
    ),
    case("qwen2", "qwen2", {"tie_word_embeddings": True}),
    case("qwen3", "qwen3", {"head_dim": 32}),
    case("gemma", "gemma", {"head_dim": 32, "tie_word_embeddings": True}),
    case(
        "gemma2",
        "gemma2",
        {"head_dim": 32, "query_pre_attn_scalar": 24, "sliding_window": 8, "tie_word_embeddings": True},
        {
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
            "attention.sliding_window": 8,
            "attention.scale": 24**-0.5,
        },
    ),
    case(
        "gemma3",
        "gemma3_text",
        {
            "head_dim": 32,
            "query_pre_attn_scalar": 32,
            "sliding_window": 8,
            "num_hidden_layers": 7,
            "tie_word_embeddings": True,
            "rope_theta": 1e6,
            "rope_local_base_freq": 1e4,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
        {
            "attention.sliding_window": 8,
            "rope.freq_base": 1e6,
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0,
        },
    ),
    case("phi2", "phi", {"hidden_size": 128, "num_key_value_heads": 4, "partial_rotary_factor": 0.5}),
    case(
        "phi3",
        "phi3",
        {"sliding_window": 16, "rope_scaling": LONGROPE, "original_max_position_embeddings": 32, "pad_token_id": 0},
        {
            "attention.sliding_window": 16,
            "rope.scaling.original_context_length": 32,
            "rope.scaling.attn_factor": 1.25,
        },
    ),
    case("gpt2", "gpt2", GPT, alone=True),
    case("starcoder", "gpt_bigcode", GPT | {"multi_query": True}, alone=True),
    case(
        "gptneox",
        "gpt_neox",
        {"hidden_size": 128, "rotary_pct": 0.5, "num_key_value_heads": 4},
        {"use_parallel_residual": True},
    ),
    case(
        "gptneox",
        "gpt_neox",
        {"use_parallel_residual": False, "rotary_pct": 1.0, "num_key_value_heads": 4},
        {"use_parallel_residual": False},
        name="sequential",
    ),
    case("starcoder2", "starcoder2", {"sliding_window": None}),
    case(
        "falcon",
        "falcon",
        {"multi_query": True, "new_decoder_architecture": False, "parallel_attn": True, "num_kv_heads": 1},
        name="7b",
    ),
    case("falcon", "falcon", {"new_decoder_architecture": True, "num_kv_heads": 2}, name="40b"),
    case(
        "falcon",
        "falcon",
        {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1},
        name="11b",
    ),
    case(
        "bloom",
        "bloom",
        {"vocab_size": 131, "hidden_size": 64, "n_layer": 2, "n_head": 4},
        {"context_length": 2048},
        alone=True,
    ),
    case(
        "mpt",
        "mpt",
        {
            "vocab_size": 131,
            "d_model": 64,
            "n_layers": 2,
            "n_heads": 4,
            "max_seq_len": 128,
            "attn_config": {"clip_qkv": 0.5},
        },
        {"attention.clamp_kqv": 0.5, "attention.max_alibi_bias": 8.0},
        alone=True,
    ),
    case(
        "stablelm",
        "stablelm",
        {"hidden_size": 128, "use_qkv_bias": True, "qk_layernorm": True, "partial_rotary_factor": 0.5},
    ),
    case("stablelm", "stablelm", {"use_parallel_residual": True, "partial_rotary_factor": 0.5}, name="parallel"),
    case("olmo", "olmo", {"clip_qkv": 0.5}, {"attention.clamp_kqv": 0.5}),
    case("olmo2", "olmo2"),
    case(
        "olmo2",
        "olmo3",
        {"num_hidden_layers": 4, "sliding_window": 8, "rope_theta": 1e4},
        {"attention.sliding_window": 8},
    ),
    case(
        "granite",
        "granite",
        {
            "embedding_multiplier": 12.0,
            "logits_scaling": 8.0,
            "residual_multiplier": 0.22,
            "attention_multiplier": 0.0156,
        },
        {"attention.scale": 0.0156, "embedding_scale": 12.0, "residual_scale": 0.22, "logit_scale": 8.0},
    ),
    case(
        "command-r",
        "cohere",
        {"use_qk_norm": True, "logit_scale": 0.25, "tie_word_embeddings": True},
        {"logit_scale": 0.25},
    ),
    case(
        "cohere2",
        "cohere2",
        {"num_hidden_layers": 4, "sliding_window": 8, "logit_scale": 0.25, "head_dim": 16, "tie_word_embeddings": True},
        {"logit_scale": 0.25, "attention.sliding_window": 8},
    ),
    case("smollm3", "smollm3", {"num_hidden_layers": 4, "pad_token_id": 0, "tie_word_embeddings": True}),
    case("arcee", "arcee"),
    case("seed_oss", "seed_oss", {"head_dim": 16, "attention_out_bias": False}),
    case(
        "exaone4",
        "exaone4",
        {"num_hidden_layers": 4, "sliding_window": 8, "sliding_window_pattern": 4},
        {"attention.sliding_window": 8},
    ),
    case("nemotron", "nemotron", {"hidden_size": 128, "head_dim": 32, "partial_rotary_factor": 0.5}),
    case("ernie4_5", "ernie4_5", {"head_dim": 32, "use_bias": True, "tie_word_embeddings": True}),
    case("hunyuan-dense", "hunyuan_v1_dense", {"head_dim": 32}),
    case("chatglm", "glm", {"head_dim": 32, "pad_token_id": 0}),
    case("glm4", "glm4", {"head_dim": 32, "pad_token_id": 0}),
]


@pytest.mark.parametrize(("architecture", "model_type", "changes", "metadata", "alone"), CASES)
def test_a_converted_model_comes_back_whole(
    convert: Callable[..., Any], architecture, model_type, changes, metadata, alone
):
    both = convert(architecture, model_type, changes, metadata, alone)
    both.compare_tensors(atol=1e-6 if FAMILIES[architecture].norm_shift else 0)
    assert describe(both.gguf.config) == describe(both.folder.config)


def test_stacked_q_k_v_are_cut_apart(write_gguf: Callable[..., Path]):
    stacked = np.arange(16 * 8, dtype=np.float32).reshape(16, 8)  # 4 query heads and 2 key heads of size 2
    sizes = {"block_count": 1, "embedding_length": 8, "feed_forward_length": 8, "context_length": 8}
    heads = {"attention.head_count": 4, "attention.head_count_kv": 2}
    metadata = {f"chatglm.{key}": value for key, value in (sizes | heads).items()} | {"general.architecture": "chatglm"}
    tokenizer = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "glm4", "tokenizer.ggml.tokens": ["a"]}
    tensors = {"token_embd.weight": stacked, "blk.0.attn_qkv.weight": stacked, "blk.0.attn_qkv.bias": stacked[:, 0]}
    opened = open_checkpoint(write_gguf(metadata | tokenizer, tensors)).tensors
    prefix = "model.layers.0.self_attn."
    for part, rows in (("q", slice(0, 8)), ("k", slice(8, 12)), ("v", slice(12, 16))):
        np.testing.assert_array_equal(opened[f"{prefix}{part}_proj.weight"].read(), stacked[rows])
        np.testing.assert_array_equal(opened[f"{prefix}{part}_proj.bias"].read(), stacked[rows, 0])
