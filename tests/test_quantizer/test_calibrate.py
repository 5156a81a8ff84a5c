"""Grams, layer by layer: equal to those of a whole run, resumable, bounded."""

import numpy as np
import pytest

from quantizer.calibration.hessian_graph import add_hessians
from quantizer.calibration.hessians import Hessians, collect_hessians
from quantizer.calibration.segments import Segment, body, empty_cache_feeds, find_cut
from quantizer.evaluation.kl import Model
from quantizer.graph.graphs import load_graphs
from runtime.bundle.bundle import open_bundle

CHUNKS = np.random.default_rng(0).integers(3, 320, (3, 40))


@pytest.fixture(scope="module")
def hessians(tiny_bundle, tmp_path_factory):
    return collect_hessians(open_bundle(tiny_bundle), CHUNKS, tmp_path_factory.mktemp("work"))


def test_head_gram_is_that_of_the_hidden_states(tiny_bundle, hessians):
    hidden = Model(open_bundle(tiny_bundle)).hidden(CHUNKS).reshape(-1, 64)
    expected = hidden.T @ hidden / len(hidden)
    np.testing.assert_allclose(hessians.read("model.embed_tokens.weight"), expected, rtol=1e-3, atol=1e-4)
    assert hessians.tokens == CHUNKS.size


def test_every_matrix_has_a_gram(hessians):
    sizes = {"self_attn.qkv_proj": 64, "self_attn.o_proj": 64, "mlp.gate_up_proj": 64, "mlp.down_proj": 96}
    for layer in range(2):
        for name, size in sizes.items():
            hessian = hessians.read(f"model.layers.{layer}.{name}.weight")
            assert hessian.shape == (size, size)
            assert np.linalg.eigvalsh(hessian).min() > -1e-4 * hessian.diagonal().max()
            assert np.array_equal(hessians.diagonal(f"model.layers.{layer}.{name}.weight"), hessian.diagonal())


def test_normed_inputs_have_unit_squares(tiny_bundle, hessians):
    """Gains of the tiny model are near 1, and RMSNorm makes mean squares 1."""
    assert hessians.diagonal("model.layers.1.mlp.gate_up_proj.weight").mean() == pytest.approx(1, rel=0.3)


class KilledError(Exception):
    pass


def test_a_killed_run_goes_on(tiny_bundle, hessians, tmp_path):
    def die(step):
        raise KilledError

    with pytest.raises(KilledError):
        collect_hessians(open_bundle(tiny_bundle), CHUNKS, tmp_path, die)
    steps = []
    again: Hessians = collect_hessians(open_bundle(tiny_bundle), CHUNKS, tmp_path, steps.append)
    assert [step.layer for step in steps] == [2]  # the first layer was not run again
    name = "model.layers.1.mlp.down_proj.weight"
    assert np.array_equal(again.read(name), hessians.read(name))


def test_other_text_starts_anew(tiny_bundle, tmp_path):
    collect_hessians(open_bundle(tiny_bundle), CHUNKS, tmp_path)
    steps = []
    collect_hessians(open_bundle(tiny_bundle), CHUNKS[:1], tmp_path, steps.append)
    assert [step.layer for step in steps] == [1, 2]


def test_writers_weigh_tokens_by_the_stream(tiny_bundle):
    """Twice the stream in front of o is a quarter of the weight; what reads a norm does not change."""
    bundle = open_bundle(tiny_bundle)
    graph = load_graphs(bundle).models["prefill.onnx"].graph
    cut = find_cut(graph)
    model = body(graph, cut, 1, 2)
    names = add_hessians(model.graph)
    segment = Segment(model, bundle.folder)
    feeds = empty_cache_feeds(bundle, CHUNKS[:1])
    states = Segment(body(graph, cut, 0, 1), bundle.folder)(feeds)
    once = segment(feeds | states)
    twice = segment(feeds | {name: 2 * array for name, array in states.items()})
    layer = "model.layers.1.self_attn."
    reader, writer = names[f"{layer}qkv_proj.weight"], names[f"{layer}o_proj.weight"]
    np.testing.assert_allclose(twice[reader], once[reader], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(4 * twice[writer], once[writer], rtol=1e-2, atol=1e-3)
