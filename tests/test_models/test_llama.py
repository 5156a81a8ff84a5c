"""Llama in every combination of its options agrees with transformers."""

import itertools

import numpy as np
import pytest

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
ROPES = {"default": {}, "llama3": {"rope_scaling": LLAMA3}}
HEADS = {"gqa": 2, "mha": 4, "mqa": 1}


@pytest.mark.parametrize(
    ("tied", "bias", "rope", "head_dim", "heads"),
    list(itertools.product([True, False], [True, False], ROPES, [None, 32], HEADS)),
)
def test_agrees_with_transformers(make_checkpoint, pair, tied, bias, rope, head_dim, heads):
    checkpoint = make_checkpoint(
        tie_word_embeddings=tied, attention_bias=bias, mlp_bias=bias, head_dim=head_dim,
        num_key_value_heads=HEADS[heads], **ROPES[rope],
    )  # fmt: skip
    both = pair(checkpoint)
    ids = both.ids(40)
    np.testing.assert_allclose(both.ours(ids, 24), both.theirs(ids)[23:], atol=1e-4)


@pytest.mark.parametrize("head_dim", [2, 6, 8, 10, 20, 24, 100])
def test_any_head_size_is_laid_out_for_the_operator(make_checkpoint, pair, head_dim):
    both = pair(make_checkpoint(head_dim=head_dim, attention_bias=True))
    ids = both.ids(20)
    np.testing.assert_allclose(both.ours(ids, 12), both.theirs(ids)[11:], atol=1e-4)
    assert both.manifest.architecture.layers[0].head_dim % 16 == 0


@pytest.mark.parametrize("scaling", [{"type": "linear", "factor": 4.0}, {"rope_type": "yarn", "factor": 4.0}])
def test_other_rope_scalings(make_checkpoint, pair, scaling):
    both = pair(make_checkpoint(rope_scaling=scaling | {"original_max_position_embeddings": 64}))
    ids = both.ids(100)
    np.testing.assert_allclose(both.ours(ids, 90), both.theirs(ids)[89:], atol=1e-4)


def test_one_token_prompt(pair, tiny_checkpoint):
    both = pair(tiny_checkpoint)
    ids = both.ids(9)
    np.testing.assert_allclose(both.ours(ids, 1), both.theirs(ids), atol=1e-4)


def test_float16_graph_runs_on_cpu(pair, tiny_checkpoint):
    both = pair(tiny_checkpoint, dtype="float16")
    ids = both.ids(40)
    ours, theirs = both.ours(ids, 24), both.theirs(ids)[23:]
    np.testing.assert_allclose(ours, theirs, atol=1e-2 * np.abs(theirs).max())
    assert both.manifest.kv_cache.dtype == "float16"
