"""Falcon."""

from collections.abc import Mapping
from dataclasses import replace

from ..config import Keys, Settings, renamed
from ..family import GgufFamily
from ..names import in_layers
from ..orders import GROUPED


def _falcon(keys: Keys) -> Settings:
    settings, two_norms = keys.standard("layer_norm_epsilon"), keys.has("blk.0.attn_norm_2.weight")
    short = renamed(
        settings, hidden_size="hidden_size", num_hidden_layers="num_hidden_layers", vocab_size="vocab_size",
        num_attention_heads="num_attention_heads", num_kv_heads="num_key_value_heads",
        ffn_hidden_size="intermediate_size", max_position_embeddings="max_position_embeddings",
        rope_parameters="rope_parameters", tie_word_embeddings="tie_word_embeddings",
        layer_norm_epsilon="layer_norm_epsilon",
    )  # fmt: skip
    several = settings["num_key_value_heads"] > 1
    return {
        **short,
        "activation": "gelu",
        "alibi": False,
        "bias": keys.has("blk.0.attn_qkv.bias"),
        "parallel_attn": True,
        "multi_query": not several,
        "new_decoder_architecture": several,
        "num_ln_in_parallel_attn": 2 if two_norms else 1,
    }


def _with_two_norms(keys: Keys, family: GgufFamily) -> GgufFamily:
    """Falcon 40B has two norms before its branches; GGUF calls that of attention the second."""
    if not keys.has("blk.0.attn_norm_2.weight"):
        return family
    return replace(family, rows=in_layers("transformer.h.{}.", attn_norm="ln_mlp", attn_norm_2="ln_attn"))


ARCHITECTURES: Mapping[str, GgufFamily] = {
    "falcon": GgufFamily(
        "falcon",
        {},
        _falcon,
        GROUPED,
        variant=_with_two_norms,
    ),
}
