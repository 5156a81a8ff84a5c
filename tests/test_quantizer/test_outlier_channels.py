"""Inputs that 8-bit activations cannot carry: found, kept in floating point, and multiplied as they should be."""

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest
from float_copy import write_float_copy

from quantizer.algorithms.outlier_channels import find_outlier_channels, refit, set_apart
from quantizer.algorithms.quantize_matrix import quantize_matrix
from quantizer.calibration.data import split
from quantizer.evaluation.kl import Model, evaluate
from quantizer.flow import quantize
from quantizer.graph.graphs import load_graphs
from quantizer.presets import make_recipe
from quantizer.storage.matrix import effective
from quantizer.storage.scheme import QuantConfig, Scheme
from quantizer.transforms.equivalent import EquivalentTransforms
from quantizer.transforms.smooth import scale_norm
from runtime.bundle.bundle import open_bundle

OUTLIERS = [5, 40]
TEXT = split("random", np.random.default_rng(0).integers(3, 60, (12, 64)))
RECIPE = replace(make_recipe(budget=9.0), polish=1)


def layer(largeness, smallness=1.0):
    """A matrix and the Hessian of inputs two of which are larger, and their weights smaller."""
    rng = np.random.default_rng(0)
    x, weight = rng.standard_normal((2000, 128)), rng.standard_normal((48, 128)).astype(np.float32)
    x[:, OUTLIERS] *= largeness
    weight[:, OUTLIERS] /= smallness
    return weight, (x.T @ x / len(x)).astype(np.float32)


def test_inputs_alike_need_nothing():
    assert not len(find_outlier_channels(*layer(1)))


def test_outlier_channels_with_the_most_of_the_output_need_nothing():
    """What their block loses is little beside what they bring."""
    assert not len(find_outlier_channels(*layer(100)))


def test_outlier_channels_with_small_weights_are_found():
    assert find_outlier_channels(*layer(1000, 1000)).tolist() == OUTLIERS


def test_a_matrix_that_reads_nothing_needs_nothing():
    assert not len(find_outlier_channels(np.ones((4, 64), np.float32), np.zeros((64, 64), np.float32)))


def test_they_make_up_for_what_the_codes_of_the_others_lose():
    weight, hessian = layer(30)
    mixed = np.eye(128, dtype=np.float32) + 0.1 * np.random.default_rng(1).standard_normal((128, 128)).astype("f")
    hessian, channels = mixed @ hessian @ mixed.T, np.array(OUTLIERS)
    others, left = set_apart(weight, hessian, channels)
    values = effective(*quantize_matrix(others, left, QuantConfig(Scheme(4, 32)), "gptq", np.float16))
    assert not values[:, channels].any()

    def lost(values_of_outliers):
        difference = weight - values
        difference[:, channels] = weight[:, channels] - values_of_outliers.T
        return np.vdot(difference @ hessian, difference)

    assert lost(refit(weight, hessian, channels, values).values) < 0.98 * lost(weight[:, channels].T)


@pytest.fixture(scope="module")
def outlier_bundle(tiny_bundle, tmp_path_factory):
    """The tiny model, two channels behind each norm a thousand times as large and their weights as much smaller."""

    def plan(structure, read):
        changes = EquivalentTransforms()
        for norm in structure.norms:
            scale = np.ones(len(read(norm.vectors[0])))
            scale[OUTLIERS] = 1e-3
            scale_norm(changes, norm, scale)
        return changes

    target = tmp_path_factory.mktemp("loud") / "bundle"
    write_float_copy(tiny_bundle, target, plan)
    return target


def made(source, target, monkeypatch=None):
    if monkeypatch:
        monkeypatch.setattr("quantizer.plan.find_outlier_channels", lambda *_: np.zeros(0, np.int64))
    quantize(source, target, RECIPE, text=TEXT)
    return open_bundle(target)


def test_a_model_with_outlier_channels_keeps_its_quality_within_the_budget(outlier_bundle, tmp_path, monkeypatch):
    apart = made(outlier_bundle, tmp_path / "apart")
    without = made(outlier_bundle, tmp_path / "without", monkeypatch)
    reference = Model(open_bundle(outlier_bundle))
    ours, theirs = (evaluate(Model(bundle), reference, TEXT.held_out).kl for bundle in (apart, without))
    assert ours < 0.7 * theirs
    assert {tensor.float_inputs for tensor in apart.manifest.quantization.tensors} >= {2}
    size = apart.manifest.files["weights.bin"].size
    assert 8 * size / apart.manifest.architecture.parameters <= RECIPE.budget


def test_the_graphs_name_them(outlier_bundle, tmp_path):
    bundle = made(outlier_bundle, tmp_path / "q")
    graph = load_graphs(bundle).models[bundle.manifest.graphs.decode.file].graph
    kinds = {value.name.rpartition(".")[2]: value.dtype for value in graph.initializers.values()}
    assert kinds["outlier_weights"] == ir.DataType.FLOAT16
    assert kinds["outlier_channels"] == ir.DataType.INT64
    assert kinds["outlier_mask"] == ir.DataType.FLOAT


def test_a_model_without_them_is_stored_as_before(tiny_bundle, tmp_path):
    quantize(tiny_bundle, tmp_path / "q", RECIPE, text=TEXT)
    assert {t.float_inputs for t in open_bundle(tmp_path / "q").manifest.quantization.tensors} == {0}
