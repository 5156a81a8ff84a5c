"""Every family, with each of its features on: what is absorbed stays exact, what is quantized runs, in batches too."""

from typing import Any

import numpy as np
import pytest
from float_copy import write_float_copy
from tiny_families import CASES

from quantizer.calibration.data import split
from quantizer.calibration.segments import Segment, body, empty_cache_feeds, find_cut
from quantizer.evaluation.kl import Model, evaluate
from quantizer.flow import quantize
from quantizer.graph.graphs import load_graphs
from quantizer.graph.quantizable import find_quantizable_weights, transposed_weights
from quantizer.presets import Storage, make_recipe
from quantizer.storage.weights_file import read_tensor
from quantizer.transforms.discover import find_structure
from quantizer.transforms.equivalent import EquivalentTransforms
from quantizer.transforms.permute import plan_permutations
from quantizer.transforms.smooth import plan_smoothing
from runtime.bundle.bundle import open_bundle

NAMES = [str(case) for case in CASES]
# One of a kind: biases, norms of queries, norms behind the branches, clipped values, parallel branches, learned
# positions, a projected table; experts with and without an operator, latent attention, states.
KINDS = [
    "qwen2", "qwen3", "gemma2", "olmo", "olmo2", "stablelm parallel", "gpt2", "opt 350m", "qwen3_moe", "gpt_oss",
    "gemma4_text experts", "deepseek_v2", "qwen3_next",
]  # fmt: skip
TOKENS = np.random.default_rng(2).integers(3, 131, (12, 32))
TEXT = split("random", TOKENS)
LENGTHS = np.array([24, 9, 1, 17])
RECIPES: dict[str, Any] = {
    "rtn": make_recipe(method="rtn", storage=Storage(bits=4)),
    "search": make_recipe(preset="fast"),
    "int8": make_recipe(storage=Storage(bits=8)),
    "budget": make_recipe(budget=8.5),
}
EVERYTHING = make_recipe(method="gptq", storage=Storage(bits=4, residual_channels=32))


def log_probabilities(folder):
    model = Model(open_bundle(folder))
    states = model.hidden(TOKENS[:4, :24])
    return model.log_probabilities(states.reshape(-1, states.shape[-1]))


def assert_ragged_batch_equals_alone(folder):
    bundle = open_bundle(folder)
    graph = load_graphs(bundle).models["prefill.onnx"].graph
    cut = find_cut(graph)
    segment = Segment(body(graph, cut, 0, len(cut.borders) + 1), folder)
    ids = TOKENS[: len(LENGTHS), : LENGTHS.max()]
    ends = {"seqlens_k": (LENGTHS - 1).astype(np.int32)}
    together = segment(empty_cache_feeds(bundle, ids) | ends)[cut.hidden.name]
    for row, length in enumerate(LENGTHS):
        alone = segment(empty_cache_feeds(bundle, ids[row : row + 1, :length]))[cut.hidden.name][0]
        np.testing.assert_allclose(together[row, :length], alone, atol=1e-5 * np.abs(alone).max())


@pytest.mark.parametrize("name", NAMES)
def test_absorbed_changes_are_exact(name, make_family, tmp_path):
    source = make_family(name)
    rng = np.random.default_rng(1)

    def plan(structure, read):
        bundle = open_bundle(source)
        graph = load_graphs(bundle).models["prefill.onnx"].graph
        sites = find_quantizable_weights(graph, bundle.manifest.architecture.vocab_size)
        squares = {s.weight: rng.uniform(0.1, 10, s.inputs).astype(np.float32) for s in sites}
        assert all(read(weight).ndim == 2 for weight in transposed_weights(graph) & set(squares))
        changes = EquivalentTransforms()
        plan_permutations(structure, squares.get, changes)
        plan_smoothing(structure, squares.get, lambda _: 0.5, changes)
        return changes

    write_float_copy(source, tmp_path / "copy", plan)
    expected = log_probabilities(source)
    np.testing.assert_allclose(log_probabilities(tmp_path / "copy"), expected, atol=2e-4 * np.abs(expected).max())


@pytest.mark.parametrize("name", KINDS)
def test_what_is_recognised(name, make_family):
    bundle = open_bundle(make_family(name))
    graphs = load_graphs(bundle)
    found = find_structure(graphs.models["prefill.onnx"].graph, bundle.manifest.architecture.vocab_size)
    # An experts' operator reads the stream; opt's tied head reads another value.
    without_stream = {"qwen3_moe", "gpt_oss", "gemma4_text experts", "deepseek_v2", "qwen3_next", "opt 350m"}
    assert (found.stream is None) == (name in without_stream)
    # Clipped, normed, latent, gated: something between the matrices.
    without_values = {"olmo", "gemma4_text experts", "deepseek_v2", "qwen3_next"}
    assert bool(found.attentions) != (name in without_values)
    assert all(read_tensor(graphs.initializers()[link.o]).ndim == 2 for link in found.attentions)


@pytest.mark.parametrize("name", NAMES)
def test_everything_at_once_runs(name, make_family, tmp_path):
    """GPTQ with permutations, smoothing, polish and residual channels loses less than round-to-nearest."""
    source = make_family(name)
    quantize(source, tmp_path / "q", EVERYTHING, text=TEXT)
    quantize(source, tmp_path / "rtn", RECIPES["rtn"])
    reference = Model(open_bundle(source))
    ours, plain = (evaluate(Model(open_bundle(tmp_path / n)), reference, TEXT.held_out) for n in ("q", "rtn"))
    assert 0 < ours.kl < plain.kl
    assert_ragged_batch_equals_alone(tmp_path / "q")


@pytest.mark.parametrize("method", RECIPES)
@pytest.mark.parametrize("name", KINDS)
def test_each_method_on_each_kind(name, method, make_family, tmp_path):
    recipe = RECIPES[method]
    result = quantize(make_family(name), tmp_path / "q", recipe, text=TEXT if recipe.needs_text else None)
    assert any(outcome.tensor for outcome in result.outcomes)  # a few tiny ones would grow
    assert_ragged_batch_equals_alone(tmp_path / "q")


@pytest.mark.parametrize("name", KINDS)
def test_gptq_beats_round_to_nearest(name, make_family, tmp_path):
    source = make_family(name)
    text = split("random", np.random.default_rng(2).integers(3, 131, (24, 64)))
    quantize(source, tmp_path / "gptq", make_recipe(method="gptq", storage=Storage(bits=4)), text=text)
    quantize(source, tmp_path / "rtn", RECIPES["rtn"])
    reference = Model(open_bundle(source))
    ours, plain = (evaluate(Model(open_bundle(tmp_path / n)), reference, text.held_out) for n in ("gptq", "rtn"))
    assert 0 < ours.kl < plain.kl
