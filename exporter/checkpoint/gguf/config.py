"""GGUF metadata to the keys of Hugging Face's config.json: what all families share."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from runtime.errors import CheckpointError, UnsupportedError

from ..stored import read_float32
from .blocks import block_format
from .file import GgufFile

Settings = dict[str, Any]

# Their class default rotates a part of each head, so the config must also state that whole heads rotate.
PARTIAL = ("phi2", "gptneox", "stablelm", "nemotron", "chatglm", "glm4", "glm4moe")


@dataclass(frozen=True)
class Keys:
    """The metadata under an architecture's prefix, and what only the tensors say."""

    file: GgufFile
    architecture: str
    read: set[str] = field(default_factory=set, compare=False)

    def get(self, key: str, default: Any = None) -> Any:
        """`A.key`, or the default."""
        self.read.add(key)
        return self.file.metadata.get(f"{self.architecture}.{key}", default)

    def integer(self, key: str, default: int | None = None) -> int:
        """An integer of at least 1 that must be there, unless there is a default; equal in all layers."""
        value = self.get(key, default)
        if isinstance(value, np.ndarray) and value.size:
            if (value != value[0]).any():
                raise UnsupportedError(f"{self.file.path}: {self.architecture}.{key} differs between layers: {value}.")
            value = int(value[0])
        if type(value) is not int or value < 1:
            raise CheckpointError(
                f"{self.file.path}: metadata {self.architecture}.{key} is {value!r}; expected a positive integer."
            )
        return value

    def per_layer(self, key: str) -> list[Any]:
        """A value for every layer, whether the file has one or many."""
        value = self.get(key)
        return [value] * self.layers if not isinstance(value, np.ndarray) else value[: self.layers].tolist()

    @property
    def kv_heads(self) -> int:
        """Key/value heads; layers that are no attention may state none."""
        stated = self.get("attention.head_count_kv", self.integer("attention.head_count"))
        counts = {int(n) for n in stated} - {0} if isinstance(stated, np.ndarray) else {stated}
        if len(counts) != 1 or type(count := counts.pop()) is not int or count < 1:
            raise UnsupportedError(f"{self.file.path}: {self.architecture}.attention.head_count_kv is {stated}.")
        return count

    def has(self, tensor: str) -> bool:
        """Whether the file has this tensor."""
        return tensor in self.file.tensors

    @property
    def layers(self) -> int:
        """Decoder layers, without those that predict further tokens."""
        count, extra = self.integer("block_count"), self.get("nextn_predict_layers", 0)
        if type(extra) is not int or not 0 <= extra < count <= len(self.file.tensors):
            raise CheckpointError(
                f"{self.file.path}: {len(self.file.tensors)} tensors cannot be those of {count} layers "
                f"({self.architecture}.block_count), {extra} of them to predict further tokens."
            )
        return count - extra

    @property
    def head_dim(self) -> int:
        """Size of a head."""
        return self.integer(
            "attention.key_length", self.integer("embedding_length") // self.integer("attention.head_count")
        )

    def standard(
        self, norm: str = "rms_norm_eps", *, kv_heads: int | None = None, width: int | None = None
    ) -> Settings:
        """Llama's keys.

        Args:
            norm: names the epsilon, which decides what kind of norm it is.
            kv_heads, width: key/value heads and MLP width, where layers differ in them.
        """
        heads = self.integer("attention.head_count")
        epsilon = "attention.layer_norm_rms_epsilon" if norm == "rms_norm_eps" else "attention.layer_norm_epsilon"
        return {
            "hidden_size": self.integer("embedding_length"),
            "intermediate_size": width or self.integer("feed_forward_length"),
            "num_hidden_layers": self.layers,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads or self.kv_heads,
            "head_dim": self.head_dim,
            "max_position_embeddings": self.integer("context_length"),
            "vocab_size": self._vocab_size(),
            "tie_word_embeddings": not self.has("output.weight"),
            "hidden_act": "silu",
            "rope_parameters": self.rope(),
            norm: self.get(epsilon, 1e-5),
        }

    def _vocab_size(self) -> int:
        embedding = self.file.tensors.get("token_embd.weight")
        if embedding is None or len(embedding.shape) != 2:
            raise CheckpointError(f"{self.file.path}: no token_embd.weight matrix; is this a language model?")
        return embedding.shape[0]

    def rope(self) -> Settings:
        """`rope_parameters`: base, share that rotates, scaling."""
        rope: Settings = {"rope_type": "default", "rope_theta": self.get("rope.freq_base", 10000.0)}
        rotary = self.integer("rope.dimension_count", self.head_dim)
        if rotary != self.head_dim or self.architecture in PARTIAL:
            rope["partial_rotary_factor"] = rotary / self.head_dim
        factors = {
            kind: self._factors(f"rope_{kind}.weight", rotary // 2)
            for kind in ("freqs", "factors_short", "factors_long")
        }
        if factors["freqs"] is not None:  # how Llama 3's scaling is stored
            return {**rope, "rope_type": "factors", "factors": factors["freqs"]}
        if factors["factors_long"] is not None:
            return {**rope, **self._longrope(factors)}
        return {**rope, **self._scaling()}

    def _factors(self, name: str, count: int) -> list[float] | None:
        """Divisors of the rotary frequencies, one per pair."""
        info = self.file.tensors.get(name)
        if info is None:
            return None
        where = f"{self.file.path.name}: {name}"
        if info.shape != (count,):
            raise CheckpointError(
                f"{where}: shape {list(info.shape)}, expected [{count}], half of the rotary dimensions."
            )
        return [float(x) for x in read_float32(info.range, info.shape, block_format(info.type, where), where)]

    def _longrope(self, factors: Mapping[str, list[float] | None]) -> Settings:
        return present(
            rope_type="longrope",
            short_factor=factors["factors_short"],
            long_factor=factors["factors_long"],
            attention_factor=self.get("rope.scaling.attn_factor"),
            original_max_position_embeddings=self.get("rope.scaling.original_context_length"),
        )

    def _scaling(self) -> Settings:
        """Of the frequencies. As llama.cpp reads it, a factor without a type is linear."""
        kind, prefix = self.get("rope.scaling.type", "linear"), "rope.scaling."
        old = self.get("rope.scale_linear")  # the name of the first files
        factor = self.get(prefix + "factor", old) or 1.0
        if kind == "none" or (kind == "linear" and factor == 1.0):
            return {}
        if kind == "linear":
            return {"rope_type": "linear", "factor": factor}
        if kind != "yarn":
            raise UnsupportedError(
                f"{self.file.path}: metadata {self.architecture}.rope.scaling.type is {kind!r}; "
                "supported are none, linear and yarn."
            )
        multiplier = self.get(prefix + "yarn_log_multiplier")
        return present(
            rope_type="yarn",
            factor=factor,
            original_max_position_embeddings=self.get(prefix + "original_context_length"),
            attention_factor=self.get(prefix + "attn_factor", self.get(prefix + "yarn_attn_factor")),
            beta_fast=self.get(prefix + "yarn_beta_fast"),
            beta_slow=self.get(prefix + "yarn_beta_slow"),
            # The file has one of the two only; models that use it set both alike.
            mscale=None if multiplier is None else multiplier * 10,
            mscale_all_dim=None if multiplier is None else multiplier * 10,
        )

    def layer_types(self, period: int) -> list[str]:
        """Sliding or full for each layer, by the file's pattern, else full every `period` layers."""
        stated = self.get("attention.sliding_window_pattern", period)
        if isinstance(stated, np.ndarray):
            slides = [bool(flag) for flag in stated[: self.layers]]
        else:
            slides = [stated == 0 or (i + 1) % int(stated) != 0 for i in range(self.layers)]
        return ["sliding_attention" if flag else "full_attention" for flag in slides]


def present(**settings: Any) -> Settings:
    """The settings that are there."""
    return {key: value for key, value in settings.items() if value is not None}


def renamed(settings: Settings, **names: str) -> Settings:
    """Only the settings that are named, under their new names: new=old."""
    return {new: settings[old] for new, old in names.items()}
