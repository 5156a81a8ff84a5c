"""Tiny deterministic models: made here, never downloaded."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

# The same examples each time, and no limit on one: a busy machine must not fail a test.
settings.register_profile("project", deadline=None, derandomize=True)
settings.load_profile("project")
os.environ["ONNXLM_NO_PREPARE"] = "1"  # models start thousands of times here, and not for a next time

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

TINY_CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def llama_tensors(config: dict[str, Any], seed: int = 0) -> dict[str, np.ndarray]:
    """Random float32 weights under Hugging Face names, scaled so that attention is not uniform."""
    rng = np.random.default_rng(seed)
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    heads = config["num_attention_heads"]
    kv_heads, size = config.get("num_key_value_heads", heads), config.get("head_dim") or hidden // heads
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        linears = {
            "self_attn.q_proj": (heads * size, hidden),
            "self_attn.k_proj": (kv_heads * size, hidden),
            "self_attn.v_proj": (kv_heads * size, hidden),
            "self_attn.o_proj": (hidden, heads * size),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        for name, shape in linears.items():
            shapes[f"{layer}{name}.weight"] = shape
            if config.get("attention_bias" if "attn" in name else "mlp_bias"):
                shapes[f"{layer}{name}.bias"] = shape[:1]
        shapes[layer + "input_layernorm.weight"] = shapes[layer + "post_attention_layernorm.weight"] = (hidden,)
    if not config.get("tie_word_embeddings"):
        shapes["lm_head.weight"] = (vocab, hidden)
    return {name: _random(rng, name, shape) for name, shape in shapes.items()}


def _random(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    if "norm" in name:
        return rng.uniform(0.5, 1.5, shape).astype(np.float32)
    table = "embed" in name or "lm_head" in name
    scale = 0.25 if table or len(shape) == 1 else 2 / np.sqrt(shape[-1])
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def tiny_tokenizer(vocab_size: int = 320) -> str:
    """tokenizer.json of a byte-level BPE: four special tokens, 256 bytes, merges of frequent English pairs."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>"]
    tokens = special + sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = "Ġ t|h e|i n|e r|a n|r e|o n|Ġ a|o r|e n|Ġt he|in g|Ġa n|Ġ s|o u|e s|a t|i t|Ġ w|s t".split("|")  # noqa: SIM905
    merges = [tuple(pair.split(" ")) for pair in pairs]
    tokens += ["".join(pair) for pair in merges]
    vocab = {token: i for i, token in enumerate(dict.fromkeys(tokens))}
    assert len(vocab) <= vocab_size
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return tokenizer.to_str()


def write_checkpoint(folder: Path, config: dict[str, Any], tensors: dict[str, np.ndarray]) -> Path:
    """A Hugging Face folder with a tokenizer and a chat template."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"bos_token_id": 1, "eos_token_id": [2, 0]}))
    (folder / "tokenizer.json").write_text(tiny_tokenizer(config["vocab_size"]))
    names = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|pad|>", "chat_template": CHATML}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="session")
def make_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Write a tiny Llama checkpoint whose config differs from the default in the given keys."""

    def make(seed: int = 0, **changes: Any) -> Path:
        config = {key: value for key, value in (TINY_CONFIG | changes).items() if value is not None}
        return write_checkpoint(tmp_path_factory.mktemp("checkpoint"), config, llama_tensors(config, seed))

    return make


@pytest.fixture(scope="session")
def tiny_checkpoint(make_checkpoint: Callable[..., Path]) -> Path:
    """The default tiny Llama: 2 layers, hidden 64, 4 heads over 2 key/value heads, tied head, context 256."""
    return make_checkpoint()


@pytest.fixture(scope="session")
def make_bundle(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Export a checkpoint to a float32 bundle, unverified: tests compare for themselves."""
    from exporter.export import ExportOptions, export

    def make(checkpoint: Path, **options: Any) -> Path:
        output = tmp_path_factory.mktemp("bundle") / "bundle"
        export(checkpoint, output, ExportOptions(**({"verify": "none"} | options)))
        return output

    return make


@pytest.fixture(scope="session")
def tiny_bundle(tiny_checkpoint: Path, make_bundle: Callable[..., Path]) -> Path:
    """The float32 bundle of the default tiny Llama."""
    return make_bundle(tiny_checkpoint)
