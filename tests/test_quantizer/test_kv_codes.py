"""Keys and values in 8 and 4 bits: what is stored, what it costs, and that the engine's promises still hold."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from quantizer.calibration.data import Text
from quantizer.graph.graphs import prefill_graph
from quantizer.kv_cache.quantize import quantize_cache
from quantizer.kv_cache.rope_pairs import find_rope_pairs
from quantizer.kv_cache.scales import measure_scales
from quantizer.progress import silent
from runtime import LLM, EngineOptions, OptionError, QuantizationError, SamplingParams
from runtime.bundle.bundle import open_bundle
from runtime.cli.main import main
from runtime.ort.executor import OnnxExecutor

CHUNKS = np.random.default_rng(0).integers(4, 320, (6, 200))
TEXT = Text("random", CHUNKS[:4], CHUNKS[4:], "held out of random")


@pytest.fixture(scope="module", params=[8, 4])
def bits(request):
    return request.param


@pytest.fixture(scope="module")
def result(tiny_bundle, bits, tmp_path_factory):
    target = tmp_path_factory.mktemp("kv") / "bundle"
    return target, *quantize_cache(tiny_bundle, target, bits, TEXT)


def test_a_token_costs_its_bits(result, bits, tiny_bundle):
    _, manifest, _ = result
    assert manifest.kv_cache.bytes_per_token * 32 == open_bundle(tiny_bundle).manifest.kv_cache.bytes_per_token * bits
    assert (manifest.kv_cache.dtype, manifest.kv_cache.stored_bits) == ({8: "int8", 4: "uint8"}[bits], bits)
    assert manifest.quality is None


def test_the_loss_is_measured_and_small_in_8_bits(result, bits):
    _, _, quality = result
    assert (quality.tokens, quality.context) == (400, 256)  # both chunks in a row, as far as the context reaches
    assert quality.kl < {8: 0.03, 4: 3}[bits]
    assert quality.top1 > {8: 0.85, 4: 0.1}[bits]


def test_what_is_stored_is_the_float_cache_in_codes(result, bits, tiny_bundle):
    if bits == 4:
        pytest.skip("two codes in a byte: compared through the logits")
    folder, _, _ = result
    ids = CHUNKS[0]
    pairs = find_rope_pairs(prefill_graph(open_bundle(tiny_bundle)))
    scale, *_ = measure_scales(open_bundle(tiny_bundle), pairs, TEXT.chunks, 127, silent).values()
    caches = []
    for bundle in (tiny_bundle, folder):
        executor = OnnxExecutor(open_bundle(bundle), slots=1, threads=1)
        executor.prefill(0, 0, ids)
        caches.append(executor.read(0, 0, len(ids)))
    # The first layer's inputs are the same in both, so only rounding to a step of the scale separates them.
    scale = scale[:, None, :]
    assert np.abs(caches[0][0] - caches[1][0] * scale).max() <= 0.501 * scale.max()


def test_chunks_and_company_do_not_change_a_bit(result):
    executor = OnnxExecutor(open_bundle(result[0]), slots=3, threads=1)
    ids = CHUNKS[1][:120]
    whole = executor.prefill(0, 0, ids).copy()
    for start in range(0, 120, 40):
        pieces = executor.prefill(1, start, ids[start : start + 40])
    assert np.array_equal(pieces, whole)
    executor.prefill(2, 0, ids[:33])
    together = executor.decode(np.array([7, 8, 9]), np.array([120, 120, 33])).copy()
    executor.copy_slot(2, 0, 33)
    assert np.array_equal(executor.decode(np.array([9]), np.array([33]))[0], together[2])


@pytest.mark.parametrize("past", [2, 37, 64, 120])
def test_decode_gives_the_bits_of_prefill(result, past):
    """So drafts can be verified in chunks, and later prompts may go on behind generated tokens, bit for bit."""
    executor = OnnxExecutor(open_bundle(result[0]), slots=2, threads=1)
    ids = CHUNKS[2][: past + 12]
    executor.prefill(0, 0, ids[:past])
    scores = executor.all_logits(0, past, ids[past:]).copy()
    executor.prefill(1, 0, ids[:past])
    executor.copy_slot(1, 0, past)
    single = [executor.decode(ids[at : at + 1], np.array([at]))[0].copy() for at in range(past, past + 12)]
    assert np.array_equal(np.stack(single), scores)


def test_generated_tokens_are_found_again(result):
    with LLM(result[0], options=EngineOptions(threads=1)) as llm:
        first = llm.generate([5, 6, 7], SamplingParams(max_tokens=9, ignore_eos=True))
        second = llm.generate([5, 6, 7, *first.token_ids, 8, 9], SamplingParams(max_tokens=1))
    assert second.cached_tokens == 3 + 8


def test_the_engine_serves_it_and_kv_dtype_says_what_it_is(result, bits, tiny_bundle):
    options = EngineOptions(threads=1, kv_dtype={8: "int8", 4: "int4"}[bits], prefix_cache=1 << 20)
    with LLM(result[0], options=options) as llm:
        assert len(llm.generate([5, 6, 7], SamplingParams(max_tokens=9, ignore_eos=True)).token_ids) == 9
    with pytest.raises(OptionError, match="hold keys and values in float32"):
        LLM(tiny_bundle, options=replace(options, threads=1))


def test_twice_is_refused(result, tmp_path):
    with pytest.raises(QuantizationError, match="already"):
        quantize_cache(result[0], tmp_path / "again", 8, TEXT)
    assert not (tmp_path / "again").exists()


def test_layers_that_borrow_keys_are_refused(make_family, tmp_path):
    with pytest.raises(QuantizationError, match="attend to the keys and values of others"):
        quantize_cache(make_family("gemma4_text"), tmp_path / "kv", 8, TEXT)
    assert not (tmp_path / "kv").exists()


def test_the_command(tiny_bundle: Path, tmp_path: Path):
    np.save(tmp_path / "ids.npy", CHUNKS.reshape(-1))
    arguments = [
        "quantize-kv",
        str(tiny_bundle),
        "-o",
        str(tmp_path / "kv"),
        "--calibration",
        str(tmp_path / "ids.npy"),
    ]
    done = CliRunner().invoke(main, [*arguments, "--json"], catch_exceptions=False)
    assert json.loads(done.stdout)["bytes_per_token"] == {"before": 512, "after": 128}
    assert open_bundle(tmp_path / "kv", verify=True).manifest.kv_cache.calibration.source == "ids.npy"
