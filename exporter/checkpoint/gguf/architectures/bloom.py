"""BLOOM."""

from collections.abc import Mapping

from ..config import Keys, Settings, renamed
from ..family import GgufFamily
from ..orders import GROUPED


def _bloom(keys: Keys) -> Settings:
    return renamed(
        keys.standard("layer_norm_epsilon"),
        hidden_size="hidden_size",
        n_layer="num_hidden_layers",
        n_head="num_attention_heads",
        vocab_size="vocab_size",
        seq_length="max_position_embeddings",
        tie_word_embeddings="tie_word_embeddings",
        layer_norm_epsilon="layer_norm_epsilon",
    )


ARCHITECTURES: Mapping[str, GgufFamily] = {
    "bloom": GgufFamily("bloom", {}, _bloom, GROUPED),
}
