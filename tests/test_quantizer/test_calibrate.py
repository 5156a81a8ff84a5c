"""Hessians, layer by layer: equal to those of a whole run, resumable, bounded."""

import numpy as np
import pytest

from quantizer.calibration.half import from_half, to_half
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
    np.testing.assert_allclose(hessians.read("model.embed_tokens.weight"), expected, rtol=1e-3, atol=1e-3)
    assert hessians.tokens == CHUNKS.size


def test_every_matrix_has_a_gram(hessians):
    sizes = {"self_attn.qkv_proj": 64, "self_attn.o_proj": 64, "mlp.gate_up_proj": 64, "mlp.down_proj": 96}
    for layer in range(2):
        for name, size in sizes.items():
            hessian = hessians.read(f"model.layers.{layer}.{name}.weight")
            assert hessian.shape == (size, size)
            assert np.linalg.eigvalsh(hessian).min() > -1e-4 * hessian.diagonal().max()
            squares = hessians.diagonal(f"model.layers.{layer}.{name}.weight")
            np.testing.assert_allclose(squares, hessian.diagonal(), rtol=1e-5)


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


def test_hessians_that_are_not_kept_are_made_again_alike(tiny_bundle, hessians, tmp_path):
    again = collect_hessians(open_bundle(tiny_bundle), CHUNKS, tmp_path, most_kept=0)
    assert not list(tmp_path.glob("hessian*"))
    for name in ("layers.1.mlp.down_proj", "layers.0.self_attn.o_proj", "layers.1.mlp.gate_up_proj", "embed_tokens"):
        assert np.array_equal(again.read(f"model.{name}.weight"), hessians.read(f"model.{name}.weight"))
        assert np.array_equal(again.diagonal(f"model.{name}.weight"), hessians.diagonal(f"model.{name}.weight"))


def test_states_in_16_bits_keep_11_of_them():
    sizes = np.array([1e-8, 1e-3, 1.0, 1e4, 1e7, 0.0], np.float32)[:, None]
    rows = np.random.default_rng(0).normal(size=(6, 64)).astype(np.float32) * sizes
    rows[2, 5] = 1e6
    stored = to_half(rows)
    assert stored.dtype == np.float16
    allowed = 2.0**-11 * np.abs(rows) + 1e-9 * np.abs(rows).max(-1, keepdims=True)
    assert (np.abs(from_half(stored) - rows) <= allowed).all()


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
    reader, writer = (f"{names[f'{layer}{name}_proj.weight']}.hessian" for name in ("qkv", "o"))
    np.testing.assert_allclose(twice[reader], once[reader], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(4 * twice[writer], once[writer], rtol=1e-2, atol=1e-3)
