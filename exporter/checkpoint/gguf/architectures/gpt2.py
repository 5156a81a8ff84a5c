"""GPT-2 and StarCoder."""

from collections.abc import Mapping

from ..config import Keys, Settings, renamed
from ..family import CONV1D, GgufFamily


def _gpt2(keys: Keys) -> Settings:
    settings = keys.standard("layer_norm_epsilon")
    short = renamed(
        settings, n_embd="hidden_size", n_layer="num_hidden_layers", n_head="num_attention_heads",
        n_positions="max_position_embeddings", n_inner="intermediate_size", vocab_size="vocab_size",
        tie_word_embeddings="tie_word_embeddings", layer_norm_epsilon="layer_norm_epsilon",
    )  # fmt: skip
    return {**short, "activation_function": "gelu_new"}


def _starcoder(keys: Keys) -> Settings:
    return {**_gpt2(keys), "activation_function": "gelu_pytorch_tanh", "multi_query": True}


ARCHITECTURES: Mapping[str, GgufFamily] = {
    "gpt2": GgufFamily("gpt2", {}, _gpt2, transposed=CONV1D),
    "starcoder": GgufFamily("gpt_bigcode", {}, _starcoder),
}
