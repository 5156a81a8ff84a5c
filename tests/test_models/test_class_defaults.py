"""A key that a config leaves out means what it means to transformers, in a model's own config and in a text_config."""

import copy
import json
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from huggingface_hub.errors import StrictDataclassClassValidationError
from tiny_families import CASES
from transformers import AutoConfig

from models.families.defaults import _tables, complete_config, complete_text_config
from models.families.registry import FAMILIES, describe
from runtime.errors import CheckpointError

NEED_MORE = ("deepseek_v2", "dots1", "granitemoehybrid")  # a model of their classes' defaults has no experts, no cache


def of_transformers(model_type, values):
    """The class's config as a dict, or None where it refuses; a copy, as it writes into what it gets."""
    try:
        return AutoConfig.for_model(model_type, **copy.deepcopy(values)).to_dict() | {"model_type": model_type}
    except (StrictDataclassClassValidationError, ValueError, ZeroDivisionError):
        return None


def test_the_file_is_of_the_installed_transformers():
    sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
    import class_defaults

    assert json.loads(json.dumps(class_defaults.tables())) == _tables()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_key_left_out(case):
    whole, compared = case.config(), 0
    for key in (None, *whole):
        values = {name: value for name, value in whole.items() if name != key}
        theirs = of_transformers(case.model_type, values)
        with suppress(CheckpointError):  # an error is no wrong model
            ours = describe(complete_config(values | {"model_type": case.model_type}))
            assert theirs is None or ours == describe(theirs), key
            compared += theirs is not None
    assert compared


@pytest.mark.parametrize("model_type", sorted(set(FAMILIES) - set(NEED_MORE)))
def test_a_text_config_of_nothing_but_its_type(model_type):
    assert describe(complete_text_config({"model_type": model_type}, None)) == describe(of_transformers(model_type, {}))


def test_null_is_a_value():
    values = {"model_type": "mistral", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1,
              "num_attention_heads": 8, "vocab_size": 99}  # fmt: skip
    windows = [describe(complete_config(values | more))[0].layers[0].attention.window
               for more in ({}, {"sliding_window": None}, {"sliding_window": 7})]  # fmt: skip
    assert windows == [4096, None, 7]


def test_a_base_that_transformers_would_ignore():
    with pytest.raises(CheckpointError, match=r"rope_theta 500000.0 without rope_scaling.*rope_parameters"):
        complete_config({"model_type": "apertus", "rope_theta": 5e5})
    complete_config({"model_type": "apertus", "rope_theta": 12e6})
