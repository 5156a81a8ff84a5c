"""What the engine relies on, asked of the graphs: rows do not depend on their batch, chunks not on their cut."""

import numpy as np
import onnxruntime as ort
import pytest

from exporter.verify.numpy_graphs import NumpyRunner
from runtime.bundle.bundle import open_bundle

LENGTHS = (5, 17, 1, 9)
CAPACITY = 64


@pytest.fixture(scope="module")
def graphs(tiny_bundle):
    manifest = open_bundle(tiny_bundle).manifest
    sessions = [ort.InferenceSession(str(tiny_bundle / f"{name}.onnx")) for name in ("prefill", "decode")]
    return manifest, *sessions


def prompts():
    rng = np.random.default_rng(1)
    return [rng.integers(0, 320, length) for length in LENGTHS]


def empty_cache(manifest, batch):
    ports = [port for port in manifest.graphs.prefill.inputs if port.role.startswith("past")]
    return {port.name: np.zeros([batch, port.shape[1], CAPACITY, port.shape[3]], np.float32) for port in ports}


def prefill(manifest, session, rows, filler=0):
    """All rows in one right-padded batch with an empty past; logits and the cache after it."""
    width = max(map(len, rows))
    ids = np.stack([np.pad(row, (0, width - len(row)), constant_values=filler) for row in rows])
    lengths = np.array([len(row) for row in rows])
    feeds = {
        "input_ids": ids,
        "logits_index": np.stack([np.arange(len(rows)), lengths - 1], axis=1),
        "seqlens_k": (lengths - 1).astype(np.int32),
    }
    cache = empty_cache(manifest, len(rows))
    logits, *presents = session.run(None, feeds | {"total_sequence_length": np.array(width, np.int32)} | cache)
    return logits, dict(zip(cache, presents, strict=True))


def test_ragged_prefill_equals_rows_alone(graphs):
    manifest, session, _ = graphs
    together, _ = prefill(manifest, session, prompts())
    for row, prompt in enumerate(prompts()):
        alone, _ = prefill(manifest, session, [prompt])
        np.testing.assert_allclose(together[row], alone[0], atol=1e-5)


def test_padding_token_is_irrelevant(graphs):
    manifest, session, _ = graphs
    zero, _ = prefill(manifest, session, prompts(), filler=0)
    eos, _ = prefill(manifest, session, prompts(), filler=2)
    np.testing.assert_array_equal(zero, eos)


def test_ragged_decode_equals_rows_alone_bitwise(graphs):
    manifest, session, decoder = graphs
    caches = [prefill(manifest, session, [prompt])[1] for prompt in prompts()]
    lengths = np.array(LENGTHS)

    def decode(rows):
        cache = {name: np.concatenate([caches[row][name] for row in rows]) for name in caches[0]}
        feeds = {"input_ids": np.full((len(rows), 1), 7), "seqlens_k": lengths[rows].astype(np.int32)}
        return decoder.run(
            ["logits"], feeds | {"total_sequence_length": np.array(max(lengths[rows]) + 1, np.int32)} | cache
        )

    together = decode([0, 1, 2, 3])[0]
    for row in range(4):
        np.testing.assert_array_equal(together[row], decode([row])[0][0])


@pytest.mark.parametrize("cut", [2, 5, 16, 38])
def test_chunked_prefill_equals_whole_bitwise(graphs, tiny_bundle, cut):
    runner = NumpyRunner(tiny_bundle, graphs[0], CAPACITY)
    ids = np.random.default_rng(2).integers(0, 320, 40)
    whole = runner.prefill(ids)
    runner.reset()
    runner.prefill(ids[:cut])
    np.testing.assert_array_equal(runner.prefill(ids[cut:]), whole)


def test_prefill_graph_serves_decoding_too(graphs, tiny_bundle):
    runner = NumpyRunner(tiny_bundle, graphs[0], CAPACITY)
    runner.prefill(np.arange(10))
    by_decode = runner.decode(11)
    runner.length -= 1
    np.testing.assert_array_equal(runner.prefill(np.array([11])), by_decode)
