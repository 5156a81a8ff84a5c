"""Metadata that nobody reads: neutral, about the file only, told, or an error."""

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

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


# Metadata outside the architecture


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"general.type": "adapter"}, "general.type is 'adapter': not a model of its own"),
        ({"general.type": "mmproj"}, "general.type is 'mmproj'"),
        ({"tokenizer.ggml.eos_token_id": 99999}, "eos_token_id is 99999, not the id of one of"),
        ({"tokenizer.ggml.eot_token_id": "x"}, "eot_token_id is 'x'"),
        ({"tokenizer.ggml.bos_token_id": 99999}, "bos_token_id is 99999"),
        ({"tokenizer.ggml.eog_token_ids": [5, 99999]}, "eog_token_ids is 99999"),
        ({"tokenizer.chat_template": 5}, "chat_template is 5, not the text"),
        ({"tokenizer.chat_template.tool_use": 5}, "tool_use is 5, not the text"),
        ({"llama.rope.scaling.factor": float("nan")}, "factor of the rotary positions is nan"),
        ({"llama.attention.layer_norm_rms_epsilon": float("inf")}, "epsilon is inf"),
        ({"llama.rope.freq_base": 0.0}, "rope_theta of the rotary positions is 0.0"),
        ({"llama.rope.scaling.factor": -2.0}, r"factor of the rotary positions is -2\.0"),
    ],
)
def test_nonsense_is_refused(make_gguf, metadata, message):
    with pytest.raises((CheckpointError, UnsupportedError), match=message):
        open_checkpoint(make_gguf(metadata=metadata)[1])


@pytest.mark.parametrize("none", [2**32 - 1, None])
def test_an_id_of_none_is_not_set(make_gguf, none):
    path = make_gguf(metadata={"tokenizer.ggml.bos_token_id": none, "tokenizer.ggml.padding_token_id": none})[1]
    assert not {"bos_token_id", "pad_token_id"} & open_checkpoint(path).config.keys()


def test_ends_that_llama_cpp_lists_end_an_answer(make_gguf):
    assert 5 in open_checkpoint(make_gguf(metadata={"tokenizer.ggml.eog_token_ids": [5]})[1]).config["eos_token_id"]


@pytest.mark.parametrize(
    ("stored", "default", "named"),
    [
        ({"": "A", ".tool_use": "B"}, b"A", [{"name": "tool_use", "template": "B"}]),
        ({"": None, ".rag": "B"}, b"B", None),
    ],
)
def test_templates_with_names_are_kept(make_gguf, stored, default, named):
    metadata = {f"tokenizer.chat_template{name}": text for name, text in stored.items()}
    files = open_checkpoint(make_gguf(metadata=metadata)[1]).tokenizer_files
    assert files["chat_template.jinja"] == default
    assert json.loads(files["tokenizer_config.json"]).get("chat_template") == named


WORDS = st.text("abcdefgh_", min_size=3, max_size=12).map("zz{}".format)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(WORDS, st.sampled_from(["general.", "llama.", "llama.rope.", "tokenizer.", "tokenizer.ggml.", ""]),
       st.sampled_from([1, 2.5, "x", True]))  # fmt: skip
def test_any_other_key_is_told_or_an_error(make_gguf, word, place, value):
    path = make_gguf(metadata={f"{place}{word}": value})[1]
    try:
        told = " ".join(open_checkpoint(path).warnings)
    except UnsupportedError as error:
        told = str(error)
    assert f"{place}{word}" in told
