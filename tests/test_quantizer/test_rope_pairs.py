"""Scales of keys from short texts hold far behind: they allow for what rope turns the keys into there."""

import numpy as np
import pytest

from quantizer.graph.graphs import load_graphs
from quantizer.kv_cache.rope_pairs import find_rope_pairs
from quantizer.kv_cache.scales import largest_values
from quantizer.progress import silent
from runtime.bundle.bundle import open_bundle
from runtime.ort.executor import OnnxExecutor

TOKENS = np.random.default_rng(0).permutation(np.arange(4, 128))


def pairs_of(bundle):
    return find_rope_pairs(load_graphs(bundle).models[bundle.manifest.graphs.prefill.file].graph)


def keys_at(bundle, position):
    """Of the first layer, when TOKENS stand there: they depend on nothing else than token and position."""
    executor = OnnxExecutor(bundle, slots=1, threads=1)
    if position:
        executor.prefill_without_logits(0, 0, np.resize(TOKENS, position))
    executor.prefill(0, position, TOKENS[:40])
    return executor.read(0, position, position + 40)[0]


def test_no_key_is_clipped_at_a_thousand_tokens(make_checkpoint, make_bundle):
    bundle = open_bundle(make_bundle(make_checkpoint(max_position_embeddings=2048)))
    far = np.abs(keys_at(bundle, 1200)).max(axis=1)
    by_pair, by_channel = (
        largest_values(bundle, TOKENS[None, :40], pairs, silent)["past_key_values.0.key"]
        for pairs in (pairs_of(bundle), {})
    )
    assert (far <= by_pair * 1.0001).all()
    assert (far > by_channel * 1.1).any()


@pytest.mark.parametrize(
    "name", ["gptj", "hunyuan_v1_dense", "deepseek_v3", "phi3", "glm", "gemma4_text", "qwen3 padded heads"]
)
def test_what_a_key_can_become_is_the_same_at_every_position(make_family, name):
    """Halves and neighbours, parts of a head, a norm between rope and attention, pairs that stand still."""
    bundle = open_bundle(make_family(name))
    pairs = pairs_of(bundle)["past_key_values.0.key"]
    near, far = keys_at(bundle, 0), keys_at(bundle, 60)
    assert np.abs(near - far).max() > 0.1
    np.testing.assert_allclose(pairs.largest(near), pairs.largest(far, start=60), rtol=1e-4, atol=1e-6)


def test_layers_and_pairs_that_do_not_turn_are_left_alone(make_family):
    still = pairs_of(open_bundle(make_family("smollm3")))
    assert sorted(still) == ["past_key_values.0.key", "past_key_values.2.key"]
    assert len(pairs_of(open_bundle(make_family("gemma4_text")))["past_key_values.1.key"].first) == 8
