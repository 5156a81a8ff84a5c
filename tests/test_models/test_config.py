"""A config is understood entirely, or refused by the key that is not."""

import pytest

from models.families.registry import describe
from runtime.errors import CheckpointError, UnsupportedError

CONFIG = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "vocab_size": 100,
}  # fmt: skip


def test_defaults_are_those_of_transformers():
    decoder, _ = describe(CONFIG)
    assert decoder.context_length == 2048
    assert decoder.layers[0].attention.kv_heads == 4


def test_unknown_key_is_refused_unless_declared_irrelevant():
    with pytest.raises(UnsupportedError, match=r"rope_thetta.*--ignore-key rope_thetta"):
        describe(CONFIG | {"rope_thetta": 5e5})
    assert describe(CONFIG | {"rope_thetta": 5e5}, ["rope_thetta"]) == describe(CONFIG)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "64"}, "hidden_size must be of type int"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be at least 1"),
        ({"attention_bias": 1}, "attention_bias must be of type bool"),
        ({"num_key_value_heads": 3}, "4 query heads, not a multiple"),
        ({"model_type": None}, "model_type is missing; supported: apertus"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan, with which nothing can be computed"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps is inf"),
        ({"rms_norm_eps": -1e-5}, "rms_norm_eps is -1e-05"),
        ({"rope_theta": 0}, r"rope_theta of the rotary positions is 0\.0; it must be above 0"),
        ({"rope_scaling": {"type": "linear", "factor": -2.0}}, r"factor of the rotary positions is -2\.0"),
        ({"rope_scaling": {"type": "linear", "factor": "2"}}, "factor of the rotary positions is '2'"),
        (
            {"rope_scaling": {"type": "longrope", "factor": 2.0, "short_factor": [0] * 8, "long_factor": [1] * 8}},
            "short_factor and long_factor of the rotary positions must be above 0",
        ),
    ],
)
def test_wrong_value_names_its_key(change, message):
    with pytest.raises(CheckpointError, match=message):
        describe(CONFIG | change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mamba9"}, "'mamba9' is not supported. Supported: .*llama"),
        ({"hidden_act": "tanhshrink"}, "supported: silu, swish, gelu"),
    ],
)
def test_unsupported_value_says_what_is(change, message):
    with pytest.raises(UnsupportedError, match=message):
        describe(CONFIG | change)
