"""GGUF metadata to the keys of Hugging Face's config.json."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runtime.errors import CheckpointError, UnsupportedError

from .gguf_blocks import block_format
from .gguf_file import GgufFile
from .gguf_names import GgufFamily
from .stored import read_float32


@dataclass(frozen=True)
class Keys:
    """Metadata under the architecture's prefix."""

    file: GgufFile
    architecture: str

    def get(self, key: str, default: Any = None) -> Any:
        """`A.key`, or the default."""
        return self.file.metadata.get(f"{self.architecture}.{key}", default)

    def integer(self, key: str, default: int | None = None) -> int:
        """An integer of at least 1 that must be there, unless there is a default."""
        value = self.get(key, default)
        if type(value) is not int or value < 1:
            raise CheckpointError(
                f"{self.file.path}: metadata {self.architecture}.{key} is {value!r}; expected a positive integer."
            )
        return value


def gguf_config(file: GgufFile, family: GgufFamily) -> dict[str, Any]:
    """The config of the model, as transformers would write it.

    Raises:
        CheckpointError: a key is missing, or contradicts the tensors.
        UnsupportedError: a rope scaling that is not known.
    """
    keys = Keys(file, str(file.metadata["general.architecture"]))
    config = {**_sizes(keys), **_from_tensors(file)}
    config["model_type"] = family.model_type
    config["rms_norm_eps"] = keys.get("attention.layer_norm_rms_epsilon", 1e-5)
    config["hidden_act"] = "silu"
    config["rope_parameters"] = _rope(keys, config["head_dim"])
    return config


def _sizes(keys: Keys) -> dict[str, Any]:
    heads, hidden = keys.integer("attention.head_count"), keys.integer("embedding_length")
    return {
        "hidden_size": hidden,
        "intermediate_size": keys.integer("feed_forward_length"),
        "num_hidden_layers": keys.integer("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": keys.integer("attention.head_count_kv", heads),
        "head_dim": keys.integer("attention.key_length", hidden // heads),
        "max_position_embeddings": keys.integer("context_length"),
    }


def _from_tensors(file: GgufFile) -> dict[str, Any]:
    """What only the tensors say: the real vocabulary, tying, biases."""
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise CheckpointError(f"{file.path}: no token_embd.weight matrix; is this a language model?")
    return {
        "vocab_size": embedding.shape[0],
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_down.bias" in file.tensors,
    }


def _rope(keys: Keys, head_dim: int) -> dict[str, Any]:
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": keys.get("rope.freq_base", 10000.0)}
    rotary = keys.integer("rope.dimension_count", head_dim)
    if rotary != head_dim:
        rope["partial_rotary_factor"] = rotary / head_dim
    factors = _factors(keys.file, "rope_freqs.weight", rotary // 2)
    if factors is not None:
        return {**rope, "rope_type": "factors", "factors": factors}
    return {**rope, **_scaling(keys)}


def _factors(file: GgufFile, name: str, count: int) -> list[float] | None:
    """Divisors of the rotary frequencies, one per pair; Llama 3's scaling is stored like this."""
    info = file.tensors.get(name)
    if info is None:
        return None
    where = f"{file.path.name}: {name}"
    if info.shape != (count,):
        raise CheckpointError(f"{where}: shape {list(info.shape)}, expected [{count}], half of the rotary dimensions.")
    return [float(x) for x in read_float32(info.range, info.shape, block_format(info.type, where), where)]


def _scaling(keys: Keys) -> dict[str, Any]:
    kind = keys.get("rope.scaling.type", "none")
    if kind == "none":
        return {}
    if kind not in ("linear", "yarn"):
        raise UnsupportedError(
            f"{keys.file.path}: metadata {keys.architecture}.rope.scaling.type is {kind!r}; "
            "supported are none, linear and yarn."
        )
    scaling = {"rope_type": kind, "factor": keys.get("rope.scaling.factor")}
    return {key: value for key, value in {**scaling, **_yarn(keys, kind)}.items() if value is not None}


def _yarn(keys: Keys, kind: str) -> Mapping[str, Any]:
    if kind != "yarn":
        return {}
    return {
        "original_max_position_embeddings": keys.get("rope.scaling.original_context_length"),
        "attention_factor": keys.get("rope.scaling.attn_factor"),
        "beta_fast": keys.get("rope.scaling.yarn_beta_fast"),
        "beta_slow": keys.get("rope.scaling.yarn_beta_slow"),
    }
