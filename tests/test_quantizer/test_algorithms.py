"""What holds for every algorithm of the registry, and that a row there is all it takes to add one."""

import sys
from types import ModuleType

import numpy as np
import pytest
from click.testing import CliRunner

from quantizer.algorithms.quantize_matrix import quantize_matrix
from quantizer.algorithms.registry import METHODS, Method
from quantizer.algorithms.rtn import round_to_nearest
from quantizer.flow import quantize
from quantizer.presets import Storage, make_recipe
from quantizer.storage.scheme import QuantConfig, Scheme
from runtime.cli.main import main

RNG = np.random.default_rng(0)
WEIGHT = RNG.standard_normal((48, 96)).astype(np.float32)
X = RNG.standard_normal((400, 96)) @ (np.eye(96) + 0.2 * RNG.standard_normal((96, 96)))
HESSIAN = (X.T @ X / len(X)).astype(np.float32)


def lost(matrix):
    difference = WEIGHT - matrix.dequantize()
    return np.vdot(difference @ HESSIAN, difference)


@pytest.mark.parametrize("scheme", [Scheme(4, 32), Scheme(4, 64, symmetric=True), Scheme(8, 32)], ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_no_algorithm_loses_more_than_round_to_nearest(method, scheme):
    matrix, index = quantize_matrix(WEIGHT, HESSIAN, QuantConfig(scheme), method, np.float16, 1)
    again, _ = quantize_matrix(WEIGHT, HESSIAN, QuantConfig(scheme), method, np.float16, 1)
    assert lost(matrix) <= 1.001 * lost(round_to_nearest(WEIGHT, scheme, np.float16))
    assert np.array_equal(matrix.codes, again.codes)
    assert (matrix.codes.max() <= scheme.levels, len(index)) == (True, 0)


def test_a_row_of_the_registry_is_all_that_an_algorithm_needs(tiny_bundle, tmp_path, monkeypatch):
    module = ModuleType("quantizer.algorithms.halved")
    module.quantize_rows = lambda weight, scheme, stored, _: round_to_nearest(weight / 2, scheme, stored)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(METHODS, "halved", Method("halved", False, "half of each weight"))
    result = quantize(tiny_bundle, tmp_path / "q", make_recipe(method="halved", storage=Storage(bits=8)))
    errors = [outcome.tensor.relative_error for outcome in result.outcomes if outcome.tensor]
    assert errors == pytest.approx([0.5] * len(errors), abs=0.01)
    done = CliRunner().invoke(
        main, ["quantize", str(tiny_bundle), "-o", str(tmp_path / "r"), "--recipe", str(tmp_path / "q")]
    )
    assert done.exit_code == 0, done.output
    assert (tmp_path / "r" / "weights.bin").read_bytes() == (tmp_path / "q" / "weights.bin").read_bytes()
