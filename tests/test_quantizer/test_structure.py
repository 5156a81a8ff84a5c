"""What may absorb what, and that absorbing changes nothing."""

import numpy as np
import pytest
from float_copy import write_float_copy

from quantizer.evaluation.kl import Model
from quantizer.graph.graphs import load_graphs
from quantizer.transforms.discover import find_structure
from quantizer.transforms.equivalent import Axis, EquivalentTransforms
from quantizer.transforms.permute import plan_permutations
from quantizer.transforms.smooth import plan_smoothing
from runtime.bundle.bundle import open_bundle

IDS = np.array([[5, 6, 7, 8, 9, 10, 11, 12]])


def structure_of(folder):
    bundle = open_bundle(folder)
    graph = load_graphs(bundle).models["prefill.onnx"].graph
    return find_structure(graph, bundle.manifest.architecture.vocab_size)


def log_probabilities(folder):
    model = Model(open_bundle(folder))
    return model.log_probabilities(model.hidden(IDS)[0])


def random_squares(shapes):
    """Made-up mean squares of each matrix's inputs; inputs of one value share them, as in a model."""
    rng = np.random.default_rng(0)
    by_size = {name: rng.uniform(0.1, 10, size).astype(np.float32) for name, size in shapes.items()}
    return by_size.get


def input_sizes(structure):
    sizes = dict.fromkeys(structure.stream.inputs, structure.stream.size)
    sizes |= {link.o: link.heads * link.head_dim for link in structure.attentions}
    return sizes | dict.fromkeys((gate.down for gate in structure.gates), 96)


def test_a_llama_is_recognised(tiny_bundle):
    found = structure_of(tiny_bundle)
    assert len(found.norms) == 4  # two layers; the final norm's reader is the tied table, which cannot absorb
    assert [link.head_dim for link in found.attentions] == [16, 16]
    assert [gate.down for gate in found.gates] == [f"model.layers.{i}.mlp.down_proj.weight" for i in range(2)]
    assert found.stream is not None
    assert found.stream.size == 64
    assert len(found.stream.inputs) == 1 + 2 * 2
    assert len(found.stream.outputs) == 2 * 2 + 5  # o and down; gains


@pytest.mark.parametrize("steps", ["permute", "smoothing", "both"])
def test_absorbed_changes_are_exact(tiny_bundle, tmp_path, steps):
    def plan(structure, _read):
        changes = EquivalentTransforms()
        squares = random_squares(input_sizes(structure))
        if steps != "smoothing":
            plan_permutations(structure, squares, changes)
        if steps != "permute":
            plan_smoothing(structure, squares, lambda _: 0.5, changes)
        return changes

    write_float_copy(tiny_bundle, tmp_path / "copy", plan)
    before, after = log_probabilities(tiny_bundle), log_probabilities(tmp_path / "copy")
    np.testing.assert_allclose(after, before, atol=2e-4)
    assert (tiny_bundle / "weights.bin").read_bytes() != (tmp_path / "copy" / "weights.bin").read_bytes()


def test_axes_compose():
    array = np.arange(12, dtype=np.float32).reshape(4, 3)
    first = Axis(np.array([2, 0, 3, 1]), np.array([1.0, 2.0, 3.0, 4.0]))
    second = Axis(np.array([3, 1, 0, 2]), np.array([5.0, 1.0, 1.0, 0.5]))
    expected = second.apply(first.apply(array, 0), 0)
    np.testing.assert_allclose(first.then(second).apply(array, 0), expected)


def test_grams_follow_their_inputs():
    rng = np.random.default_rng(0)
    x, weight = rng.standard_normal((50, 6)).astype(np.float32), rng.standard_normal((4, 6)).astype(np.float32)
    axis = Axis(rng.permutation(6), rng.uniform(0.5, 2, 6))
    changed = x[:, axis.order] / axis.scale
    np.testing.assert_allclose(axis.apply_to_hessian(x.T @ x), changed.T @ changed, rtol=1e-4)
    np.testing.assert_allclose(changed @ axis.apply(weight, 1).T, x @ weight.T, atol=1e-5)
