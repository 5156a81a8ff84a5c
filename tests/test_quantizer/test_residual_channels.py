"""Residual-coded channels: a second code where it helps most, in the graph as in numpy."""

import numpy as np
import pytest

from quantizer.algorithms.factor import damp
from quantizer.algorithms.quantize_matrix import quantize_matrix
from quantizer.algorithms.residual_channels import choose_residual_channels
from quantizer.algorithms.rtn import round_to_nearest
from quantizer.storage.matrix import effective
from quantizer.storage.scheme import QuantConfig, Scheme


def layer(inputs, outputs=40, loud=(3, 17)):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((500, inputs))
    x[:, list(loud)] *= 30
    return rng.standard_normal((outputs, inputs)).astype(np.float32), (x.T @ x / 500).astype(np.float32)


def error(weight, hessian, config):
    matrix, index = quantize_matrix(weight, hessian, config, "gptq", np.float16)
    difference = weight - effective(matrix, index)
    return np.vdot(difference @ hessian, difference)


@pytest.mark.parametrize("inputs", [64, 72])
def test_loud_inputs_are_chosen_and_kept(inputs):
    weight, hessian = layer(inputs)
    assert {3, 17} <= set(choose_residual_channels(weight, hessian.diagonal(), Scheme(4, 16), 16).tolist())
    assert error(weight, hessian, QuantConfig(Scheme(4, 16), 16)) < 0.4 * error(
        weight, hessian, QuantConfig(Scheme(4, 16))
    )


def test_filler_reads_nothing():
    """72 inputs leave half a group of 16 open: the second codes begin behind it."""
    weight, hessian = layer(72)
    matrix, index = quantize_matrix(weight, hessian, QuantConfig(Scheme(4, 16), 16), "gptq", np.float16)
    assert matrix.codes.shape == (40, 96)
    assert not matrix.dequantize()[:, 72:80].any()
    assert index[:8].tolist() == [0] * 8


def test_effective_weights_add_both_codes():
    weight, _ = layer(64)
    matrix = round_to_nearest(np.hstack([weight, weight[:, :16]]), Scheme(4, 16))
    expected = matrix.dequantize()[:, :64].copy()
    expected[:, 32:48] += matrix.dequantize()[:, 64:]
    assert np.array_equal(effective(matrix, np.arange(32, 48)), expected)


def test_residual_channels_fill_groups():
    with pytest.raises(ValueError, match="multiple of the group size"):
        QuantConfig(Scheme(4, 32), 40)


def test_damping_keeps_the_order():
    _, hessian = layer(64)
    assert damp(hessian).diagonal().argmax() == hessian.diagonal().argmax()
