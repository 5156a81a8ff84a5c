"""Tiny transformers models, and GGUF files of them as llama.cpp's converter writes them.

Names are those of the gguf package's own map; the changes to tensors are written down here once more.
"""

import re
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

from exporter.checkpoint import Checkpoint, open_checkpoint

Tensors = dict[str, np.ndarray]

BASE: dict[str, Any] = {
    "vocab_size": 131, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "tie_word_embeddings": False,
}  # fmt: skip
TOKENIZER = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": ["a", "b"]}
PERMUTED = {"llama", "mistral3", "granite", "granitemoe", "granitehybrid", "smollm3", "arcee", "olmo"}
ONE_PLUS = {"gemma", "gemma2", "gemma3", "nemotron", "qwen3next", "qwen35", "qwen35moe"}


@dataclass(frozen=True)
class Case:
    """`changes` to the base config (or `alone`); `metadata` that the converter writes beside the common keys."""

    architecture: str
    model_type: str
    changes: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    alone: bool = False


@dataclass(frozen=True)
class Both:
    """One model, read from the GGUF file and from the Hugging Face folder."""

    gguf: Checkpoint
    folder: Checkpoint

    def compare_tensors(self, atol: float = 0) -> None:
        assert self.gguf.tensors.keys() == self.folder.tensors.keys()
        for name, source in self.folder.tensors.items():
            ours = self.gguf.tensors[name]
            assert ours.shape == source.shape, name
            np.testing.assert_allclose(ours.read(), source.read(), rtol=0, atol=atol, err_msg=name)


@pytest.fixture
def convert(tmp_path: Path, write_gguf: Callable[..., Path]) -> Callable[..., Both]:
    """Save a random model of the case, convert it, open both."""

    def run(*args: Any, kinds: dict[str, str] | None = None, **kwargs: Any) -> Both:
        case = Case(*args, **kwargs)
        config = save_random(case, tmp_path / "hf")
        tensors = converted(case, config, load_file(tmp_path / "hf" / "model.safetensors"))
        metadata = common_metadata(case.architecture, config, tensors) | TOKENIZER
        metadata |= {f"{case.architecture}.{key}": value for key, value in case.metadata.items()}
        return Both(open_checkpoint(write_gguf(metadata, tensors, kinds)), open_checkpoint(tmp_path / "hf"))

    return run


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


def common_metadata(architecture: str, config: Any, tensors: Tensors) -> dict[str, Any]:
    heads, hidden = config.num_attention_heads, config.hidden_size
    stated = config.to_dict()
    kv_heads = stated.get("num_kv_heads") or stated.get("num_key_value_heads") or heads
    size = stated.get("head_dim") or hidden // heads
    down = tensors.get("blk.0.ffn_down.weight")
    rope = getattr(config, "rope_parameters", None) or {}
    keys: dict[str, Any] = {
        "block_count": config.num_hidden_layers,
        "context_length": 128,
        "embedding_length": hidden,
        "feed_forward_length": config.intermediate_size if down is None else down.shape[1],
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


def converted(case: Case, config: Any, tensors: Tensors) -> Tensors:
    kind = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == case.architecture)
    names = gguf.get_tensor_name_map(kind, config.num_hidden_layers)
    result: Tensors = {}
    for name, values in split_parts(stacked(tensors), config).items():
        found = stored_name(name, names, case.architecture)
        result[found] = changed(case, config, found, values)
    if case.architecture == "gemma4":  # a quarter of the pairs of full layers turns
        result["rope_freqs.weight"] = np.repeat(np.array([1, 1e30], np.float32), [8, 24])
    for length in ("short", "long"):
        factors = config.to_dict().get("rope_parameters", {}).get(f"{length}_factor")
        if factors:
            result[f"rope_factors_{length}.weight"] = np.array(factors, np.float32)
    return result


def stacked(tensors: Tensors) -> Tensors:
    """Experts, and StableLM's norms of single heads, are stored as one tensor."""
    groups: dict[str, dict[int, np.ndarray]] = {}
    result: Tensors = {}
    for name, values in tensors.items():
        match = re.fullmatch(r"(.+[._])(experts|norms|projections)\.(\d+)\.(.+)", name)
        if match is None:
            result[name] = values
        else:
            stem, kind, index, ending = match.groups()
            key = f"{stem.removesuffix('.')}.{ending}" if kind == "norms" else f"{stem}{kind}.{ending}"
            groups.setdefault(key, {})[int(index)] = values
    return result | {key: np.stack([parts[i] for i in sorted(parts)]) for key, parts in groups.items()}


def split_parts(tensors: Tensors, config: Any) -> Tensors:
    """What the converter cuts apart or renames before it looks up names."""
    result: Tensors = {}
    for name, values in tensors.items():
        layer = next((part for part in name.split(".") if part.isdecimal()), "")
        if name.endswith("kv_b_proj.weight") and config.model_type == "deepseek_v3":  # newer files: keys turned, values
            heads = values.reshape(config.num_attention_heads, -1, values.shape[1])
            result[f"blk.{layer}.attn_k_b.weight"] = heads[:, : config.qk_nope_head_dim].swapaxes(1, 2)
            result[f"blk.{layer}.attn_v_b.weight"] = heads[:, config.qk_nope_head_dim :]
        elif name.endswith("in_proj_qkvz.weight"):
            for part, rows in zip(("attn_qkv", "attn_gate"), split_qkvz(config, values), strict=True):
                result[f"blk.{layer}.{part}.weight"] = rows
        elif name.endswith(("experts.gate_up_proj", "experts.gate_up_proj_bias")):  # gpt-oss: columns alternate
            for i, part in enumerate(("gate", "up")):
                result[name.replace("gate_up", part)] = values[..., i::2]
        elif ".input_linear." in name:  # Granite: rows of gate, then of up
            kind = "_exps" if "shared" not in name else "_shexp" if config.num_local_experts else ""
            for part, rows in zip(("gate", "up"), np.split(values, 2, axis=-2), strict=True):
                result[f"blk.{layer}.ffn_{part}{kind}.weight"] = rows
        elif name.endswith(("e_score_correction_bias", "dt_bias", "expert_bias")):
            short = name.replace("dt_bias", "dt_proj_bias").replace("expert_bias", "expert_bias_bias")
            result[short.removesuffix("_bias") + ".bias"] = values
        else:
            result[name] = values
    return {name: oriented(name, values) for name, values in result.items()}


def oriented(name: str, values: np.ndarray) -> np.ndarray:
    """gpt-oss' packed experts are [in, out]."""
    transposed = name.endswith(("experts.gate_proj", "experts.up_proj", "experts.down_proj"))
    return np.ascontiguousarray(values.swapaxes(-1, -2) if transposed else values)


def tiled(config: Any, name: str, values: np.ndarray) -> np.ndarray:
    """Qwen3.5: value head g·r + j moves to j·Hk + g."""
    keys, count, size = config.linear_num_key_heads, config.linear_num_value_heads, config.linear_value_head_dim
    heads = np.arange(count).reshape(keys, count // keys).T.reshape(-1)
    wide = (heads[:, None] * size + np.arange(size)).reshape(-1)
    first = 2 * keys * config.linear_key_head_dim
    if name.endswith(("attn_qkv.weight", "ssm_conv1d.weight")):
        return np.concatenate([values[:first], values[first:][wide]])
    if name.endswith("attn_gate.weight"):
        return values[wide]
    if name.endswith("ssm_out.weight"):
        return np.ascontiguousarray(values[:, wide])
    return values[heads] if name.endswith(("ssm_a", "ssm_dt.bias", "ssm_alpha.weight", "ssm_beta.weight")) else values


def split_qkvz(config: Any, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Qwen3-Next: rows [q, k, v, z] of each key head become q | k | v and z."""
    keys, size = config.linear_num_key_heads, config.linear_key_head_dim
    share = config.linear_num_value_heads // keys * config.linear_value_head_dim
    groups = np.split(values.reshape(keys, -1, values.shape[1]), [size, 2 * size, 2 * size + share], axis=1)
    q, k, v, z = (group.reshape(-1, values.shape[1]) for group in groups)
    return np.concatenate([q, k, v]), z


def stored_name(name: str, names: Any, architecture: str) -> str:
    if name.startswith("blk."):
        return name
    short = name.removeprefix("transformer.") if architecture == "bloom" else name
    if short.endswith((".sinks", ".correct_output_scale", ".layer_scalar")):
        short += ".weight"
    if ".experts." in name and not name.endswith((".weight", ".bias")):
        short = name.removesuffix("_bias") + (".bias" if name.endswith("_bias") else ".weight")
    options = (
        names.get_name(option, try_suffixes=(".weight", ".bias")) for option in (short, short.removeprefix("model."))
    )
    found = next((option for option in options if option is not None), None)
    assert found is not None, name
    return str(found)


def changed(case: Case, config: Any, name: str, values: np.ndarray) -> np.ndarray:
    heads = config.num_attention_heads
    if case.architecture in PERMUTED and (".attn_q." in name or ".attn_k." in name):
        count = heads if ".attn_q." in name else config.num_key_value_heads
        return values.reshape(count, 2, values.shape[0] // count // 2, -1).swapaxes(1, 2).reshape(values.shape)
    if case.architecture in ONE_PLUS and name.endswith("norm.weight") and "ssm_norm" not in name:
        return values + np.float32(1)
    if name.endswith(".ssm_a"):
        values = -np.exp(values)
    if name.endswith(("conv1d.weight", "shortconv.conv.weight")):
        values = values[:, 0]
    if case.architecture.startswith("qwen35"):
        return tiled(config, name, values)
    if case.architecture == "gpt2" and values.ndim == 2 and name.startswith("blk."):
        return np.ascontiguousarray(values.T)
    if case.architecture in ("falcon", "gptneox", "bloom") and ".attn_qkv." in name:
        keys = config.num_kv_heads if case.architecture == "falcon" else heads
        groups = values.reshape(keys, heads // keys + 2, config.hidden_size // heads, -1)
        parts = (groups[:, :-2], groups[:, -2:-1], groups[:, -1:])
        return np.concatenate([part.reshape(-1, *values.shape[1:]) for part in parts])
    return values
