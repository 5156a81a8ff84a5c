"""Every family that GGUF knows: a tiny transformers model, converted as llama.cpp's converter does, comes back whole.

Names are those of the gguf package's own map; the changes to tensors are written down once more below.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from exporter.checkpoint import open_checkpoint
from exporter.checkpoint.gguf_families import FAMILIES
from models.families import describe

BASE: dict[str, Any] = {
    "vocab_size": 131, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "tie_word_embeddings": False,
}  # fmt: skip
GPT = {"vocab_size": 131, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}
TOKENIZER = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": ["a", "b"]}
PERMUTED = {"llama", "mistral3", "granite", "smollm3", "arcee", "olmo"}
ONE_PLUS = {"gemma", "gemma2", "gemma3", "nemotron"}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}
LONGROPE = {
    "attention_factor": 1.25,
    "type": "longrope",
    "short_factor": [1.0 + i / 8 for i in range(8)],
    "long_factor": [1.0 + i for i in range(8)],
}


@dataclass(frozen=True)
class Case:
    """`changes` to the base config (or `alone`); `metadata` that the converter writes beside the common keys."""

    architecture: str
    model_type: str
    changes: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    alone: bool = False
    name: str = ""


CASES = [
    Case("llama", "llama", {"attention_bias": True, "mlp_bias": True}),
    Case(
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
    Case("qwen2", "qwen2", {"tie_word_embeddings": True}),
    Case("qwen3", "qwen3", {"head_dim": 32}),
    Case("gemma", "gemma", {"head_dim": 32, "tie_word_embeddings": True}),
    Case(
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
    Case(
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
    Case("phi2", "phi", {"hidden_size": 128, "num_key_value_heads": 4, "partial_rotary_factor": 0.5}),
    Case(
        "phi3",
        "phi3",
        {"sliding_window": 16, "rope_scaling": LONGROPE, "original_max_position_embeddings": 32, "pad_token_id": 0},
        {
            "attention.sliding_window": 16,
            "rope.scaling.original_context_length": 32,
            "rope.scaling.attn_factor": 1.25,
        },
    ),
    Case("gpt2", "gpt2", GPT, alone=True),
    Case("starcoder", "gpt_bigcode", GPT | {"multi_query": True}, alone=True),
    Case(
        "gptneox",
        "gpt_neox",
        {"hidden_size": 128, "rotary_pct": 0.5, "num_key_value_heads": 4},
        {"use_parallel_residual": True},
    ),
    Case(
        "gptneox",
        "gpt_neox",
        {"use_parallel_residual": False, "rotary_pct": 1.0, "num_key_value_heads": 4},
        {"use_parallel_residual": False},
        name="sequential",
    ),
    Case("starcoder2", "starcoder2", {"sliding_window": None}),
    Case(
        "falcon",
        "falcon",
        {"multi_query": True, "new_decoder_architecture": False, "parallel_attn": True, "num_kv_heads": 1},
        name="7b",
    ),
    Case("falcon", "falcon", {"new_decoder_architecture": True, "num_kv_heads": 2}, name="40b"),
    Case(
        "falcon",
        "falcon",
        {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1},
        name="11b",
    ),
    Case(
        "bloom",
        "bloom",
        {"vocab_size": 131, "hidden_size": 64, "n_layer": 2, "n_head": 4},
        {"context_length": 2048},
        alone=True,
    ),
    Case(
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
    Case(
        "stablelm",
        "stablelm",
        {"hidden_size": 128, "use_qkv_bias": True, "qk_layernorm": True, "partial_rotary_factor": 0.5},
    ),
    Case("stablelm", "stablelm", {"use_parallel_residual": True, "partial_rotary_factor": 0.5}, name="parallel"),
    Case("olmo", "olmo", {"clip_qkv": 0.5}, {"attention.clamp_kqv": 0.5}),
    Case("olmo2", "olmo2"),
    Case(
        "olmo2",
        "olmo3",
        {"num_hidden_layers": 4, "sliding_window": 8, "rope_theta": 1e4},
        {"attention.sliding_window": 8},
    ),
    Case(
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
    Case(
        "command-r",
        "cohere",
        {"use_qk_norm": True, "logit_scale": 0.25, "tie_word_embeddings": True},
        {"logit_scale": 0.25},
    ),
    Case(
        "cohere2",
        "cohere2",
        {"num_hidden_layers": 4, "sliding_window": 8, "logit_scale": 0.25, "head_dim": 16, "tie_word_embeddings": True},
        {"logit_scale": 0.25, "attention.sliding_window": 8},
    ),
    Case("smollm3", "smollm3", {"num_hidden_layers": 4, "pad_token_id": 0, "tie_word_embeddings": True}),
    Case("arcee", "arcee"),
    Case("seed_oss", "seed_oss", {"head_dim": 16, "attention_out_bias": False}),
    Case(
        "exaone4",
        "exaone4",
        {"num_hidden_layers": 4, "sliding_window": 8, "sliding_window_pattern": 4},
        {"attention.sliding_window": 8},
    ),
    Case("nemotron", "nemotron", {"hidden_size": 128, "head_dim": 32, "partial_rotary_factor": 0.5}),
    Case("ernie4_5", "ernie4_5", {"head_dim": 32, "use_bias": True, "tie_word_embeddings": True}),
    Case("hunyuan-dense", "hunyuan_v1_dense", {"head_dim": 32}),
    Case("chatglm", "glm", {"head_dim": 32, "pad_token_id": 0}),
    Case("glm4", "glm4", {"head_dim": 32, "pad_token_id": 0}),
]


def save_random(case: Case, folder: Path) -> Any:
    torch.manual_seed(0)
    values = case.changes if case.alone else BASE | case.changes
    if case.model_type == "falcon":
        values = {
            key: value for key, value in values.items() if key not in ("intermediate_size", "num_key_value_heads")
        }
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(case.model_type, **values), dtype=torch.float32)
    for parameter in model.parameters():
        parameter.data.copy_(torch.randn_like(parameter))
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text('{"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}')
    return model.config


def common_metadata(architecture: str, config: Any, tensors: dict[str, np.ndarray]) -> dict[str, Any]:
    heads, hidden = config.num_attention_heads, config.hidden_size
    kv_heads = getattr(config, "num_kv_heads", None) or getattr(config, "num_key_value_heads", None) or heads
    size = getattr(config, "head_dim", None) or hidden // heads
    down = next(values for name, values in tensors.items() if name == "blk.0.ffn_down.weight")
    rope = getattr(config, "rope_parameters", None) or {}
    keys: dict[str, Any] = {
        "block_count": config.num_hidden_layers,
        "context_length": 128,
        "embedding_length": hidden,
        "feed_forward_length": down.shape[1],
        "attention.head_count": heads,
        "attention.head_count_kv": 1 if architecture == "starcoder" else kv_heads,
        "attention.key_length": size,
        "rope.freq_base": float(rope.get("rope_theta", 10000.0)),
        "rope.dimension_count": int(size * rope.get("partial_rotary_factor", 1.0)),
        "attention.layer_norm_rms_epsilon": epsilon(config),
        "attention.layer_norm_epsilon": epsilon(config),
    }
    return {"general.architecture": architecture, **{f"{architecture}.{key}": value for key, value in keys.items()}}


def epsilon(config: Any) -> float:
    names = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon")
    return next((value for name in names if (value := getattr(config, name, None)) is not None), 1e-5)


def convert(case: Case, config: Any, tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    kind = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == case.architecture)
    names = gguf.get_tensor_name_map(kind, config.num_hidden_layers)
    result: dict[str, np.ndarray] = {}
    for name, values in stacked_norms(tensors).items():
        short = name.removeprefix("transformer.") if case.architecture == "bloom" else name
        found = names.get_name(short, try_suffixes=(".weight", ".bias"))
        assert found is not None, name
        result[found] = changed(case, config, found, values)
    if case.architecture == "phi3":
        for length in ("short", "long"):
            result[f"rope_factors_{length}.weight"] = np.array(LONGROPE[f"{length}_factor"], np.float32)
    return result


def stacked_norms(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """StableLM's norms of single heads are stored as one matrix."""
    result: dict[str, np.ndarray] = {}
    for name, values in tensors.items():
        stem, _, head = name.removesuffix(".weight").rpartition(".norms.")
        key = f"{stem}.weight" if stem else name
        if not stem:
            result[key] = values
        elif head == "0":
            count = sum(other.startswith(f"{stem}.norms.") for other in tensors)
            result[key] = np.stack([tensors[f"{stem}.norms.{i}.weight"] for i in range(count)])
    return result


def changed(case: Case, config: Any, name: str, values: np.ndarray) -> np.ndarray:
    heads = config.num_attention_heads
    if case.architecture in PERMUTED and (".attn_q." in name or ".attn_k." in name):
        count = heads if ".attn_q." in name else config.num_key_value_heads
        return values.reshape(count, 2, values.shape[0] // count // 2, -1).swapaxes(1, 2).reshape(values.shape)
    if case.architecture in ONE_PLUS and name.endswith("norm.weight"):
        return values + np.float32(1)
    if case.architecture == "gpt2" and values.ndim == 2 and name.startswith("blk."):
        return np.ascontiguousarray(values.T)
    if case.architecture in ("falcon", "gptneox", "bloom") and ".attn_qkv." in name:
        keys = config.num_kv_heads if case.architecture == "falcon" else heads
        groups = values.reshape(keys, heads // keys + 2, config.hidden_size // heads, -1)
        parts = (groups[:, :-2], groups[:, -2:-1], groups[:, -1:])
        return np.concatenate([part.reshape(-1, *values.shape[1:]) for part in parts])
    return values


@pytest.mark.parametrize(
    "case", CASES, ids=[f"{case.architecture} {case.model_type} {case.name}".strip() for case in CASES]
)
def test_a_converted_model_comes_back_whole(case: Case, tmp_path: Path, write_gguf: Callable[..., Path]):
    config = save_random(case, tmp_path / "hf")
    tensors = convert(case, config, load_file(tmp_path / "hf" / "model.safetensors"))
    metadata = common_metadata(case.architecture, config, tensors) | TOKENIZER
    metadata |= {f"{case.architecture}.{key}": value for key, value in case.metadata.items()}
    ours = open_checkpoint(write_gguf(metadata, tensors))
    theirs = open_checkpoint(tmp_path / "hf")
    assert ours.tensors.keys() == theirs.tensors.keys()
    for name, source in theirs.tensors.items():
        exact = case.architecture not in ONE_PLUS
        np.testing.assert_allclose(
            ours.tensors[name].read(), source.read(), rtol=0, atol=0 if exact else 1e-6, err_msg=name
        )
    assert describe(ours.config) == describe(theirs.config)


def test_every_family_is_tried():
    assert {case.architecture for case in CASES} == set(FAMILIES) - {"internlm2"}  # a llama whose name differs
