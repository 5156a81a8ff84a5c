"""GPTQ, the scale search and the polish on a synthetic layer with correlated inputs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantizer.algorithms.array_module import array_module
from quantizer.algorithms.factor import damp, damped_factor
from quantizer.algorithms.gptq import gptq
from quantizer.algorithms.grid_search import search_matrix
from quantizer.algorithms.hessian import Hessian
from quantizer.algorithms.polish import loss, polish
from quantizer.algorithms.quantize_matrix import quantize_matrix
from quantizer.algorithms.rtn import round_to_nearest
from quantizer.storage.scheme import QuantConfig, Scheme

SCHEMES = [Scheme(4, 32), Scheme(4, 32, symmetric=True), Scheme(4, 64), Scheme(8, 64)]


def layer(inputs=96, outputs=48, seed=0):
    """Weights and the Hessian of inputs whose principal values span a factor of 50."""
    rng = np.random.default_rng(seed)
    mixing = rng.standard_normal((inputs, inputs)) * np.geomspace(1, 0.02, inputs)
    x = rng.standard_normal((8 * inputs, inputs)) @ mixing.T
    return rng.standard_normal((outputs, inputs)).astype(np.float32), Hessian(x.T @ x / len(x))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_gptq_halves_the_error(scheme):
    """Implementations that read the wrong triangle of the factor are exactly round-to-nearest, and fail here."""
    weight, hessian = layer()
    plain = loss(round_to_nearest(weight, scheme), weight, hessian)
    assert loss(gptq(weight, hessian, scheme, np.float16), weight, hessian) <= 0.55 * plain


@pytest.mark.parametrize("scheme", SCHEMES)
def test_search_beats_round_to_nearest(scheme):
    weight, hessian = layer()
    importance = hessian.values.diagonal()
    searched = search_matrix(weight, importance, scheme, np.float16).dequantize() - weight
    plain = round_to_nearest(weight, scheme).dequantize() - weight
    assert (np.square(searched) @ importance).sum() < 0.99 * (np.square(plain) @ importance).sum()


def test_without_correlation_gptq_is_the_search():
    """Nothing can make up for anything under a diagonal Hessian."""
    weight, hessian = layer()
    diagonal = Hessian(np.diag(hessian.values.diagonal()))
    expected = search_matrix(weight, diagonal.importance, Scheme(4), np.float16)
    assert np.array_equal(gptq(weight, diagonal, Scheme(4), np.float16).codes, expected.codes)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_polish_never_loses(scheme):
    weight, hessian = layer()
    before = gptq(weight, hessian, scheme, np.float16)
    after = polish(before, weight, hessian, np.float16)
    assert loss(after, weight, hessian) < loss(before, weight, hessian)
    assert np.array_equal(after.scales, after.scales.astype(np.float16).astype(np.float32))


def upper_factor(matrix):
    """R with R Rᵀ = `matrix`, by LAPACK in double precision."""
    return np.linalg.cholesky(matrix[::-1, ::-1])[::-1, ::-1]


def inverse_factor(matrix):
    """U with UᵀU = `matrix`⁻¹."""
    return np.linalg.inv(upper_factor(matrix))


@pytest.mark.parametrize("inputs", [150, 1100])
def test_a_factor_of_one_block_and_of_several(inputs):
    hessian = layer(inputs, outputs=1)[1].values
    factor = damped_factor(hessian)
    assert not np.tril(factor, -1).any()
    np.testing.assert_allclose(factor @ factor.T, damp(hessian), atol=1e-6 * hessian.max())


@pytest.mark.parametrize("seen", [50, 3000])
def test_a_factor_in_single_precision(seen):
    """Of inputs whose loudness spans four decades, one of them never seen, two of them the same."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((seen, 700)) * np.exp(rng.normal(0, 2, 700))
    x[:, 7], x[:, 9] = 0, x[:, 10]
    hessian = (x.T @ x / seen).astype(np.float32)
    exact, single = upper_factor(damp(hessian)), damped_factor(hessian)
    assert single.dtype == np.float32
    assert (np.abs(single - exact).max(axis=1) < 1e-4 * np.abs(exact).max(axis=1)).all()


@pytest.mark.parametrize("inputs", [100, 700, 1100])
def test_conditional_variances(inputs):
    hessian = layer(inputs, outputs=1)[1]
    exact = 1 / np.linalg.inv(damp(hessian.values)).diagonal()
    np.testing.assert_allclose(hessian.conditional_variances, exact, rtol=1e-3)


def test_a_factor_that_needs_double_precision():
    """An input a million times as loud as all others, and there twice."""
    x = np.random.default_rng(0).standard_normal((400, 300)) * 1e-6
    x[:, 4] *= 1e6
    x[:, 5] = x[:, 4]
    hessian = (x.T @ x / 400).astype(np.float32)
    factor = damped_factor(hessian).astype(np.float64)
    np.testing.assert_allclose(factor @ factor.T, damp(hessian), atol=1e-6 * hessian.max())


def test_gptq_is_the_published_algorithm():
    """One input after the other in double precision, each error passed on by the inverse's factor, as in the paper."""
    weight, hessian = layer(inputs=300, outputs=20)
    matrix = gptq(weight, hessian, Scheme(4), np.float16)
    inverse, current = inverse_factor(damp(hessian.values)), weight.astype(np.float64)
    scales, zeros = (np.repeat(part, 32, axis=1)[:, :300] for part in (matrix.scales, matrix.zero_points))
    for k in range(300):
        codes = np.clip(np.rint(current[:, k] / scales[:, k]) + zeros[:, k], 0, 15)
        assert (codes != matrix.codes[:, k]).sum() <= 1  # a tie in single precision
        error = (current[:, k] - (matrix.codes[:, k] - zeros[:, k].astype(float)) * scales[:, k]) / inverse[k, k]
        current[:, k:] -= np.outer(error, inverse[k, k:])


@pytest.mark.parametrize("config", [QuantConfig(Scheme(4, 32, scale_bits=8)), QuantConfig(Scheme(4, 64), 64)])
def test_codes_do_not_depend_on_slices_or_threads(config, monkeypatch):
    weight, hessian = layer(inputs=200, outputs=333)
    whole, _ = quantize_matrix(weight, hessian, config, "gptq", np.float16, 2)
    for rows, threads in ((100, 1), (64, 3), (1, 2)):
        monkeypatch.setattr("quantizer.parallel.threads", lambda count=threads: count)
        sliced, _ = quantize_matrix(weight[:150], hessian, config, "gptq", np.float16, 2, rows)
        if not config.residual_channels:  # which are chosen for all rows together
            assert np.array_equal(sliced.codes, whole.codes[:150])
            assert np.array_equal(sliced.scales, whole.scales[:150])
        again, _ = quantize_matrix(weight, hessian, config, "gptq", np.float16, 2, rows)
        assert np.array_equal(again.codes, whole.codes)


def test_a_hessian_is_factored_once(monkeypatch):
    calls = []
    weight, hessian = layer()
    factor = hessian.arrays.upper_factor
    monkeypatch.setattr(hessian.arrays, "upper_factor", lambda values: calls.append(1) or factor(values))
    for part in (weight, weight[:10], weight[20:]):
        quantize_matrix(part, hessian, QuantConfig(Scheme(4)), "gptq", np.float16, 1)
    assert len(calls) == 1


def test_torch_gives_the_same_codes_but_for_ties():
    weight, hessian = layer(inputs=300, outputs=128)
    elsewhere = Hessian(hessian.values, array_module("torch"))
    ours, theirs = (
        quantize_matrix(weight, h, QuantConfig(Scheme(4)), "gptq", np.float16, 2)[0] for h in (hessian, elsewhere)
    )
    assert type(elsewhere.held).__module__ == "torch"
    assert (ours.codes != theirs.codes).mean() < 0.01
    assert loss(theirs, weight, hessian) == pytest.approx(loss(ours, weight, hessian), rel=1e-3)


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
    """Their Hessian says nothing: what is left is the search, and a polish changes no code where nothing is lost."""
    weight, _ = layer()
    nothing = Hessian(np.zeros((96, 96), np.float32))
    plain = search_matrix(weight, np.ones(96, np.float32), Scheme(4), np.float16)
    assert np.array_equal(gptq(weight, nothing, Scheme(4), np.float16).codes, plain.codes)
    some = Hessian(np.diag(np.r_[np.ones(48), np.zeros(48)]))
    polished = polish(gptq(weight, some, Scheme(4), np.float16), weight, some, np.float16)
    assert np.abs(polished.dequantize() - weight).max() < np.abs(weight).max() / 4
