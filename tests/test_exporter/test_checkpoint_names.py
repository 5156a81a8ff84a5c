"""Which tensors are the text model's, and under which names."""

from pathlib import Path

import pytest

from exporter.checkpoint.names import text_model_tensors
from exporter.checkpoint.safetensors.folder import text_config

EMBED, NORM, HEAD = "embed_tokens.weight", "norm.weight", "lm_head.weight"


def names(*stored: str, nested: bool = False, **config: int) -> list[str]:
    return sorted(text_model_tensors({name: name for name in stored}, config, nested))


@pytest.mark.parametrize(
    ("prefix", "head"),
    [
        ("model.language_model.", "lm_head."),
        ("language_model.model.", "language_model.lm_head."),
        ("model.text_model.", "lm_head."),
    ],
)
def test_the_text_model_of_a_multimodal_one(prefix, head):
    stored = [prefix + EMBED, f"{prefix}layers.0.input_layernorm.weight", f"{head}weight", "model.visual.patch.weight"]
    expected = [HEAD, "model.embed_tokens.weight", "model.layers.0.input_layernorm.weight"]
    assert names(*stored, nested=True) == expected


@pytest.mark.parametrize(
    ("root", "expected"),
    [
        (EMBED, "model.embed_tokens.weight"),
        ("wte.weight", "transformer.wte.weight"),
        ("word_embeddings.weight", "transformer.word_embeddings.weight"),
        ("embed_in.weight", "gpt_neox.embed_in.weight"),
        ("model.embed_tokens.weight", "model.embed_tokens.weight"),
    ],
)
def test_base_models_get_the_prefix_of_their_class(root, expected):
    assert names(root) == [expected]


def test_buffers_and_prediction_heads_are_left_out():
    kept = ["model.layers.1.mlp.up_proj.weight", "model.layers.1.self_attn.q_proj.bias"]
    computed = [
        "model.layers.0.self_attn.rotary_emb.inv_freq",
        "h.0.attn.bias",
        "h.0.attn.masked_bias",
        "mtp.fc.weight",
    ]
    assert names(*kept, *computed, "model.layers.2.eh_proj.weight", num_hidden_layers=2) == kept


def test_text_config_comes_with_what_only_the_outer_level_says():
    outer = {"model_type": "vl", "eos_token_id": 7, "tie_word_embeddings": True, "text_config": {"model_type": "llama"}}
    expected = {"model_type": "llama", "eos_token_id": 7, "tie_word_embeddings": True}
    assert expected.items() <= text_config(outer, Path("config.json")).items()
