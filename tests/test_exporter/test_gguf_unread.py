"""Metadata that nobody reads: neutral, about the file only, told, or an error."""

import json

import numpy as np
import pytest

from exporter.checkpoint import open_checkpoint
from models.families.registry import describe
from runtime.errors import CheckpointError, UnsupportedError


def frequencies(path):
    decoder, _ = describe(open_checkpoint(path).config)
    return np.array(decoder.layers[0].attends.rope.inverse_frequencies)


@pytest.mark.parametrize(
    ("metadata", "divisor"),
    [
        ({"llama.rope.scaling.factor": 4.0}, 4),
        ({"llama.rope.scale_linear": 4.0}, 4),
        ({"llama.rope.scaling.type": "linear", "llama.rope.scale_linear": 2.0}, 2),
        ({"llama.rope.scaling.factor": 4.0, "llama.rope.scale_linear": 2.0}, 4),
        ({"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 4.0}, 1),
        ({"llama.rope.scaling.factor": 1.0}, 1),
        ({"llama.rope.scaling.factor": 0.0}, 1),
    ],
)
def test_a_factor_without_a_type_is_linear(make_gguf, metadata, divisor):
    plain = frequencies(make_gguf()[1])
    np.testing.assert_allclose(frequencies(make_gguf(metadata=metadata)[1]), plain / divisor, rtol=1e-6)


@pytest.mark.parametrize(
    "metadata",
    [
        {"llama.key_of_tomorrow": 1},
        {"llama.attention.sliding_window": 64},
        {"llama.attention.scale": 0.5},
        {"llama.attn_logit_softcapping": 30.0},
        {"llama.final_logit_softcapping": 30.0},
        {"llama.logit_scale": 2.0},
        {"llama.embedding_scale": 12.0},
        {"llama.rope.scaling.attn_factor": 1.2},
        {"llama.rope.scaling.alpha": 100.0},
        {"llama.attention.causal": False},
        {"llama.attention.value_length": 8},
        {"llama.attention.temperature_scale": 0.1},
        {"tokenizer.ggml.key_of_tomorrow": "x"},
        {"tokenizer.ggml.remove_extra_whitespaces": True},
    ],
)
def test_what_may_change_the_model_is_refused(make_gguf, metadata):
    path = make_gguf(metadata=metadata)[1]
    with pytest.raises(UnsupportedError, match=next(iter(metadata))):
        open_checkpoint(path)


def test_neutral_values_and_facts_about_the_file_are_accepted(make_gguf):
    neutral = {
        "llama.attention.sliding_window": 0, "llama.final_logit_softcapping": 0.0, "llama.logit_scale": 1.0,
        "llama.vocab_size": 320, "llama.attention.value_length": 16, "llama.attention.causal": True,
        "general.quantized_by": "me", "tokenizer.ggml.add_sep_token": False, "quantize.imatrix.file": "x",
    }  # fmt: skip
    assert open_checkpoint(make_gguf(metadata=neutral)[1]).warnings == ()


def test_keys_of_strangers_are_told(make_gguf):
    checkpoint = open_checkpoint(make_gguf(metadata={"stranger.key": 1, "general.sampling.mirostat_tau": 5.0})[1])
    assert "metadata stranger.key, general.sampling.mirostat_tau: not read" in checkpoint.warnings[0]


def test_a_vocabulary_without_merges_is_refused(make_gguf):
    path = make_gguf(metadata={"tokenizer.ggml.pre": "kimi-k2", "tokenizer.ggml.merges": None})[1]
    with pytest.raises(CheckpointError, match=r"tokenizer\.ggml\.merges is missing"):
        open_checkpoint(path)


def test_sampling_settings_of_a_file_are_those_of_the_bundle(make_gguf):
    wanted = {"general.sampling.temp": 0.6, "general.sampling.top_k": 20, "general.sampling.min_p": 0.0}
    checkpoint = open_checkpoint(make_gguf(metadata=wanted)[1])
    settings = json.loads(checkpoint.tokenizer_files["generation_config.json"])
    assert {key: settings.get(key) for key in ("temperature", "top_k", "min_p")} == {
        "temperature": 0.6,
        "top_k": 20,
        "min_p": None,
    }
    with pytest.raises(CheckpointError, match="top_p is 7"):
        open_checkpoint(make_gguf(metadata={"general.sampling.top_p": 7.0})[1])
    told = open_checkpoint(make_gguf(metadata={"general.sampling.mirostat": 2})[1]).warnings
    assert "general.sampling.mirostat: not read" in told[0]
