"""Frequencies equal those of transformers, to the last bit of float32 where its formula allows."""

import numpy as np
import pytest
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from models.decoder.config import Config
from models.decoder.rope import read_rope
from runtime.errors import CheckpointError, UnsupportedError

SCALINGS = [
    {"rope_type": "linear", "factor": 2.5},
    {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 8192},
    {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096,
     "mscale": 1.0, "mscale_all_dim": 0.8},
    {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 2048, "truncate": False},
]  # fmt: skip


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("head_dim", [64, 128])
def test_frequencies(scaling, head_dim):
    settings = scaling | {"rope_theta": 500000.0}
    theirs = LlamaConfig(head_dim=head_dim, rope_parameters=dict(settings), max_position_embeddings=131072)
    expected, factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](theirs, "cpu")
    rope = read_rope(Config({"rope_parameters": settings}), head_dim, 131072)
    np.testing.assert_allclose(rope.inverse_frequencies, expected.numpy(), rtol=3e-7)
    assert rope.factor == pytest.approx(factor)


def test_both_spellings_mean_the_same():
    old = Config({"rope_theta": 1e6, "rope_scaling": {"type": "linear", "factor": 2.0}})
    new = Config({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6}})
    assert read_rope(old, 64, 2048) == read_rope(new, 64, 2048)


def test_unknown_kind_is_refused_by_name():
    with pytest.raises(UnsupportedError, match=r"rope_type 'spiral'.*supported: default"):
        read_rope(Config({"rope_scaling": {"rope_type": "spiral"}}), 64, 2048)


def test_incomplete_settings_are_refused():
    with pytest.raises(CheckpointError, match="incomplete or wrong"):
        read_rope(Config({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}), 64, 2048)
