import math
from dataclasses import FrozenInstanceError

import pytest

from runtime.errors import OptionError, RequestError
from runtime.options import EngineOptions, SamplingParams

REFUSED = [
    ("max_tokens", -1),
    ("max_tokens", 1.5),
    ("max_tokens", None),
    ("max_tokens", True),
    ("temperature", math.nan),
    ("temperature", math.inf),
    ("temperature", -0.1),
    ("temperature", "0.5"),
    ("top_k", -1),
    ("top_k", 2.0),
    ("top_p", 0),
    ("top_p", 1.01),
    ("top_p", math.nan),
    ("min_p", -0.1),
    ("min_p", 1.1),
    ("seed", -1),
    ("seed", 2**64),
    ("stop", ""),
    ("stop", ["a", ""]),
    ("stop", [1]),
    ("stop", 7),
    ("stop_token_ids", [-1]),
    ("stop_token_ids", ["1"]),
    ("stop_token_ids", 3),
    ("min_tokens", -1),
    ("ignore_eos", 1),
    ("repetition_penalty", 0),
    ("repetition_penalty", math.inf),
    ("presence_penalty", math.nan),
    ("frequency_penalty", -math.inf),
    ("logit_bias", {-1: 1.0}),
    ("logit_bias", {"1": 1.0}),
    ("logit_bias", {1: math.nan}),
    ("logit_bias", {1: 101}),
    ("logit_bias", [1]),
    ("logprobs", -1),
    ("prompt_logprobs", 1.0),
    ("n", 0),
    ("n", 10_000),
]


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_a_bad_value_is_refused_by_name(name, value):
    with pytest.raises(RequestError, match=name):
        SamplingParams(**{name: value})


def test_a_message_says_what_is_accepted_and_what_came():
    with pytest.raises(RequestError) as caught:
        SamplingParams(temperature=-1)
    assert str(caught.value) == "temperature must be a number from 0 to 100, got -1."


def test_min_tokens_must_fit_in_max_tokens():
    with pytest.raises(RequestError, match="min_tokens 5 is more than max_tokens 4"):
        SamplingParams(max_tokens=4, min_tokens=5)


def test_one_stop_string_becomes_a_tuple():
    assert SamplingParams(stop="\n").stop == ("\n",)
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")


def test_parameters_cannot_change_afterwards():
    bias = {3: 1.0}
    params = SamplingParams(logit_bias=bias)
    bias[3] = math.nan
    assert params.logit_bias == {3: 1.0}
    with pytest.raises(FrozenInstanceError):
        params.n = 2


def test_unknown_names_are_errors():
    with pytest.raises(TypeError, match="temprature"):
        SamplingParams(temprature=1)


def test_the_default_is_the_model_s_own():
    params = SamplingParams(top_p=0.5).with_model_defaults({"do_sample": True, "temperature": 0.6, "top_p": 0.9})
    assert (params.temperature, params.top_p, params.top_k) == (0.6, 0.5, 0)


def test_a_model_that_does_not_ask_for_sampling_is_greedy():
    params = SamplingParams().with_model_defaults({"temperature": 0.6})
    assert (params.temperature, params.repetition_penalty) == (0.0, 1.0)


def test_a_model_that_samples_without_a_temperature_uses_one():
    assert SamplingParams().with_model_defaults({"do_sample": True}).temperature == 1.0


@pytest.mark.parametrize("params", [{"logit_bias": {10: 1}}, {"stop_token_ids": [10]}, {"logprobs": 11}])
def test_ids_are_checked_against_the_vocabulary(params):
    SamplingParams(**params).check(vocab_size=11)
    with pytest.raises(RequestError, match="vocabulary"):
        SamplingParams(**params).check(vocab_size=10)


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_concurrency", 0), ("context", 0), ("prefill_chunk", 0), ("kv_memory", 0), ("kv_dtype", "int3"),
     ("max_queue", 0), ("admission", "evict"), ("prefix_cache", -1), ("threads", 0), ("speculation", -1)],
)  # fmt: skip
def test_a_bad_engine_option_is_refused_by_name(name, value):
    with pytest.raises(OptionError, match=name):
        EngineOptions(**{name: value})
