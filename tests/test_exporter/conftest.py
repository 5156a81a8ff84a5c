"""GGUF files made here, with the gguf package's own writer."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file

Tensors = Mapping[str, np.ndarray]

LLAMA_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}  # fmt: skip


def gguf_name(name: str) -> str:
    """`model.layers.3.self_attn.q_proj.weight` to `blk.3.attn_q.weight`."""
    stem, ending = name.rsplit(".", 1)
    if not stem.startswith("model.layers."):
        return f"{LLAMA_NAMES[stem]}.{ending}"
    layer, inner = stem.removeprefix("model.layers.").split(".", 1)
    return f"blk.{layer}.{LLAMA_NAMES[inner]}.{ending}"


def interleaved(values: np.ndarray, heads: int) -> np.ndarray:
    """What llama.cpp's converter does to the rows of q and k."""
    return values.reshape(heads, 2, values.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(values.shape)


@pytest.fixture
def write_gguf(tmp_path: Path) -> Callable[..., Path]:
    """Write metadata (Python values choose the types) and tensors (stored as `kinds` says, else F32)."""

    def write(metadata: Mapping[str, Any], tensors: Tensors, kinds: Mapping[str, str] | None = None) -> Path:
        path = tmp_path / "model.gguf"
        writer = gguf.GGUFWriter(path, metadata.get("general.architecture", "llama"))
        for key, value in metadata.items():
            if key != "general.architecture" and value is not None:
                _add_metadata(writer, key, value)
        for name, values in tensors.items():
            kind = gguf.GGMLQuantizationType[(kinds or {}).get(name, "F32")]
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write


def _add_metadata(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    if isinstance(value, list):
        writer.add_array(key, value)
    else:
        kinds[type(value)](key, value)


@pytest.fixture
def make_gguf(
    make_checkpoint: Callable[..., Path], write_gguf: Callable[..., Path]
) -> Callable[..., tuple[Path, Path]]:
    """A tiny Llama as a Hugging Face folder and as the GGUF that llama.cpp's converter would write of it."""

    def make(
        kind: str = "F32", metadata: Mapping[str, Any] | None = None, extra: Tensors | None = None, **changes: Any
    ):
        folder = make_checkpoint(**changes)
        config = json.loads((folder / "config.json").read_text())
        tensors = {gguf_name(name): values for name, values in load_file(folder / "model.safetensors").items()}
        for name in tensors:
            if ".attn_q." in name or ".attn_k." in name:
                heads = config["num_attention_heads" if ".attn_q." in name else "num_key_value_heads"]
                tensors[name] = interleaved(tensors[name], heads)
        kinds = {name: kind for name, values in tensors.items() if values.ndim == 2}
        return folder, write_gguf(llama_metadata(folder) | (metadata or {}), tensors | (extra or {}), kinds)

    return make


def llama_metadata(folder: Path) -> dict[str, Any]:
    """The metadata of a tiny Llama and its byte-level tokenizer."""
    config = json.loads((folder / "config.json").read_text())
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    special = {token["id"] for token in tokenizer["added_tokens"]}
    vocab = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].__getitem__)
    return {
        "general.architecture": "llama",
        "general.name": "Tiny",
        "general.license": "mit",
        "llama.block_count": config["num_hidden_layers"],
        "llama.context_length": config["max_position_embeddings"],
        "llama.embedding_length": config["hidden_size"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.attention.head_count": config["num_attention_heads"],
        "llama.attention.head_count_kv": config["num_key_value_heads"],
        "llama.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "llama.rope.freq_base": config["rope_theta"],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": vocab,
        "tokenizer.ggml.token_type": [3 if i in special else 1 for i in range(len(vocab))],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in tokenizer["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": "{{ messages[0].content }}",
    }
