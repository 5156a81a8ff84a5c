"""GPTQ, the scale search and the polish on a synthetic layer with correlated inputs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantizer.algorithms.gptq import damp, gptq, inverse_factor
from quantizer.algorithms.grid_search import search_matrix
from quantizer.algorithms.polish import loss, polish
from quantizer.algorithms.rtn import round_to_nearest
from quantizer.recipe import Scheme
from quantizer.storage.matrix import QuantizedMatrix

SCHEMES = [Scheme(4, 32), Scheme(4, 32, symmetric=True), Scheme(4, 64), Scheme(8, 64)]


def layer(inputs=96, outputs=48, seed=0):
    """Weights and the Hessian of inputs whose principal values span a factor of 50."""
    rng = np.random.default_rng(seed)
    mixing = rng.standard_normal((inputs, inputs)) * np.geomspace(1, 0.02, inputs)
    x = rng.standard_normal((8 * inputs, inputs)) @ mixing.T
    return rng.standard_normal((outputs, inputs)).astype(np.float32), (x.T @ x / len(x)).astype(np.float32)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_gptq_halves_the_error(scheme):
    """Implementations that read the wrong triangle of the factor are exactly round-to-nearest, and fail here."""
    weight, hessian = layer()
    plain = loss(round_to_nearest(weight, scheme), weight, hessian)
    assert loss(gptq(weight, hessian, scheme, np.float16), weight, hessian) <= 0.55 * plain


@pytest.mark.parametrize("scheme", SCHEMES)
def test_search_beats_round_to_nearest(scheme):
    weight, hessian = layer()
    importance = hessian.diagonal()
    searched = search_matrix(weight, importance, scheme, np.float16).dequantize() - weight
    plain = round_to_nearest(weight, scheme).dequantize() - weight
    assert (np.square(searched) @ importance).sum() < 0.99 * (np.square(plain) @ importance).sum()


def test_without_correlation_gptq_is_the_search():
    """Nothing can make up for anything under a diagonal Hessian."""
    weight, hessian = layer()
    diagonal = np.diag(hessian.diagonal())
    importance = damp(diagonal).diagonal().astype(np.float32)
    expected = search_matrix(weight, importance, Scheme(4), np.float16)
    assert np.array_equal(gptq(weight, diagonal, Scheme(4), np.float16).codes, expected.codes)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_polish_never_loses(scheme):
    weight, hessian = layer()
    before = gptq(weight, hessian, scheme, np.float16)
    after = polish(before, weight, hessian, np.float16)
    assert loss(after, weight, hessian) < loss(before, weight, hessian)
    assert np.array_equal(after.scales, after.scales.astype(np.float16).astype(np.float32))


def test_inverse_factor():
    _, hessian = layer(inputs=150)
    factor = inverse_factor(damp(hessian))
    assert np.array_equal(factor, np.triu(factor))
    np.testing.assert_allclose(factor.T @ factor @ damp(hessian), np.eye(150), atol=1e-8)


@given(
    inputs=st.integers(1, 150),
    outputs=st.integers(1, 9),
    group=st.sampled_from([16, 32, 128]),
    bits=st.sampled_from([4, 8]),
)
@settings(max_examples=25, deadline=None)
def test_any_shape(inputs, outputs, group, bits):
    weight, hessian = layer(inputs, outputs)
    matrix = polish(gptq(weight, hessian, Scheme(bits, group), np.float16), weight, hessian, np.float16, rounds=1)
    assert matrix.codes.shape == weight.shape
    assert np.abs(matrix.dequantize() - weight).max() < np.abs(weight).max()


def test_inputs_that_were_never_seen():
    weight, _ = layer()
    nothing = np.zeros((96, 96), np.float32)
    assert isinstance(gptq(weight, nothing, Scheme(4), np.float16), QuantizedMatrix)
    some = np.diag(np.r_[np.ones(48), np.zeros(48)]).astype(np.float32)
    assert np.isfinite(polish(gptq(weight, some, Scheme(4), np.float16), weight, some, np.float16).scales).all()
