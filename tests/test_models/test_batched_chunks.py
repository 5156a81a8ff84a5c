"""Graphs for ONNX Runtime 1.32: chunks of several sequences at once, behind what each has, equal each one alone."""

import numpy as np
import pytest

from runtime.bundle.bundle import open_bundle


@pytest.mark.parametrize("changes", [{}, {"model_type": "mistral", "sliding_window": 8}], ids=["llama", "windows"])
def test_ragged_chunks_equal_each_alone(make_checkpoint, ragged_chunks, changes):
    for one in ragged_chunks(make_checkpoint(**changes)):
        assert all(np.array_equal(got, wanted) for got, wanted in one.cache)  # an idle row's too
        np.testing.assert_allclose(*one.logits, atol=1e-5)


def test_the_manifest_names_the_input_and_its_onnx_runtime(tiny_checkpoint, make_bundle):
    manifest = open_bundle(make_bundle(tiny_checkpoint, target_ort="1.32")).manifest
    roles = [[port.role for port in graph.inputs] for graph in (manifest.graphs.prefill, manifest.graphs.decode)]
    assert ["query_seqlens" in side for side in roles] == [True, False]
    assert manifest.target.min_onnxruntime == "1.32"


def test_older_graphs_stay_without_it(tiny_bundle):
    manifest = open_bundle(tiny_bundle).manifest
    assert "query_seqlens" not in [port.role for port in manifest.graphs.prefill.inputs]
    assert manifest.target.min_onnxruntime == "1.31"
