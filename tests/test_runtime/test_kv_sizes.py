"""What the cache costs and saves: the figures of the textbook, and the same from the real thing."""

import json

import numpy as np
import pytest

from runtime import LLM, SamplingParams
from runtime.bundle.bundle import open_bundle
from runtime.bundle.kv_layout import kv_bytes_per_token, positions_computed
from runtime.ort.executor import OnnxExecutor

MIB, GIB = 1 << 20, 1 << 30


def test_half_a_mebibyte_per_token():
    assert kv_bytes_per_token([(32, 128)] * 32, bits=16) == MIB // 2


def test_a_gibibyte_for_8192_tokens_with_a_quarter_of_the_heads():
    per_token = kv_bytes_per_token([(8, 128)] * 32, bits=16)
    assert per_token * 8192 == GIB


def test_half_the_bits_are_half_the_bytes():
    layers = [(8, 128), (4, 256), (1, 64)]
    assert kv_bytes_per_token(layers, 8) * 4 == kv_bytes_per_token(layers, 32) == 8 * (1024 + 1024 + 64)


def test_the_manifest_and_the_memory_agree(tiny_bundle):
    manifest = json.loads((tiny_bundle / "manifest.json").read_text())
    executor = OnnxExecutor(open_bundle(tiny_bundle), slots=3, context=100)
    size = sum(array.nbytes for array in executor.memory.arrays)
    assert size == manifest["kv_cache"]["bytes_per_token"] * 3 * executor.memory.capacity


class Counting(OnnxExecutor):
    """Counts the positions that pass through the decoder."""

    positions = 0

    def prefill(self, slot, past, ids):
        self.positions += len(ids)
        return super().prefill(slot, past, ids)

    def prefill_without_logits(self, slot, past, ids):
        self.positions += len(ids)
        super().prefill_without_logits(slot, past, ids)

    def decode(self, ids, lengths):
        self.positions += len(ids)
        return super().decode(ids, lengths)


@pytest.fixture(scope="module")
def long_bundle(make_bundle, make_checkpoint):
    """A tiny model with room for the textbook's 500 tokens."""
    return make_bundle(make_checkpoint(max_position_embeddings=512))


def without_cache(executor, first, count):
    """Greedy text, every token from a forward pass over all tokens before it."""
    ids = [first]
    while len(ids) <= count:
        ids.append(int(executor.prefill(0, 0, np.array(ids)).argmax()))
    return ids[1:]


def test_500_tokens_are_125250_positions_without_a_cache_and_500_with(long_bundle):
    cached = Counting(open_bundle(long_bundle), slots=1)
    with LLM(long_bundle, executor=cached) as llm:
        params = SamplingParams(max_tokens=500, temperature=0.0, ignore_eos=True)
        with_cache = llm.generate([5], params).token_ids
    uncached = Counting(open_bundle(long_bundle), slots=1)
    assert without_cache(uncached, 5, 500) == list(with_cache)
    assert (cached.positions, uncached.positions) == (500, 125_250)


@pytest.mark.parametrize("tokens", [0, 1, 2, 500])
def test_the_formula_counts_what_a_loop_counts(tokens):
    assert positions_computed(tokens, cached=False) == sum(range(tokens + 1))
    assert positions_computed(tokens, cached=True) == tokens
