"""MPT."""

from collections.abc import Mapping

from ..config import Keys, Settings, renamed
from ..family import GgufFamily


def _mpt(keys: Keys) -> Settings:
    settings = keys.standard("layer_norm_epsilon")
    short = renamed(
        settings, d_model="hidden_size", n_layers="num_hidden_layers", n_heads="num_attention_heads",
        max_seq_len="max_position_embeddings", vocab_size="vocab_size", tie_word_embeddings="tie_word_embeddings",
        layer_norm_epsilon="layer_norm_epsilon",
    )  # fmt: skip
    clip = keys.get("attention.clamp_kqv") or None
    attention = {"alibi": True, "alibi_bias_max": keys.get("attention.max_alibi_bias", 8.0), "clip_qkv": clip}
    ratio = settings["intermediate_size"] // settings["hidden_size"]
    return {**short, "expansion_ratio": ratio, "attn_config": attention}


ARCHITECTURES: Mapping[str, GgufFamily] = {
    "mpt": GgufFamily("mpt", {}, _mpt),
}
