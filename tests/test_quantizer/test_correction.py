"""Corrected targets: closer to what the float model would have computed, and where they apply."""

import numpy as np

from quantizer.calibration_text import split
from quantizer.correction import move
from quantizer.graphs import load_graphs
from quantizer.presets import Storage, make_recipe
from quantizer.quantize import quantize
from quantizer.weights_file import read_tensor
from runtime.bundle import open_bundle

RNG = np.random.default_rng(0)
CHUNKS = RNG.integers(3, 320, (12, 64))


def test_a_move_makes_up_for_what_the_inputs_lost():
    exact = RNG.standard_normal((400, 16)) @ RNG.standard_normal((16, 16))
    lossy = exact * 0.9 + 0.1 * RNG.standard_normal(exact.shape)
    weight = RNG.standard_normal((8, 16))
    moved = weight + weight @ move(exact.T @ lossy - lossy.T @ lossy, lossy.T @ lossy)
    wanted = exact @ weight.T
    assert np.linalg.norm(lossy @ moved.T - wanted) < 0.7 * np.linalg.norm(lossy @ weight.T - wanted)


def test_only_layers_behind_others_are_moved(tiny_bundle, tmp_path):
    text = split("random", CHUNKS)
    codes = []
    for thorough in (False, True):
        target = tmp_path / str(thorough)
        quantize(tiny_bundle, target, make_recipe(method="gptq", storage=Storage(bits=4), thorough=thorough), text=text)
        codes.append(_codes(target))
    same = [name for name in codes[0] if np.array_equal(codes[0][name], codes[1][name])]
    assert [name.split(".")[2] for name in same] == ["0"] * 4


def _codes(folder):
    tensors = load_graphs(open_bundle(folder)).initializers()
    return {name: read_tensor(tensors[name]) for name in tensors if name.endswith("_proj.codes")}
