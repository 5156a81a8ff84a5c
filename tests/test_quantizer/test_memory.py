"""Memory does not hold the model twice, whatever its size."""

import subprocess
import sys

CHILD = """
import sys
from pathlib import Path
import numpy as np
from quantizer.graph.graphs import load_graphs
from quantizer.allocation.sensitivity import Sensitivity
from quantizer.storage.weights_file import read_tensor
from runtime.bundle.bundle import open_bundle
from runtime.host.memory import peak_memory
from runtime.ort.session import onnxruntime

onnxruntime()
before = peak_memory()
bundle = open_bundle(Path(sys.argv[1]))
sensitivity = Sensitivity(bundle, np.random.default_rng(0).integers(3, 320, (2, 32)))
name = "model.layers.0.mlp.down_proj.weight"
sensitivity.kl({name: read_tensor(load_graphs(bundle).initializers()[name]) * 1.01})
print(peak_memory() - before)
"""


def test_sensitivity_holds_the_float_model_once(make_checkpoint, make_bundle):
    bundle = make_bundle(make_checkpoint(hidden_size=512, intermediate_size=2048, num_hidden_layers=8))
    done = subprocess.run([sys.executable, "-c", CHILD, bundle], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 1.6 * (bundle / "weights.bin").stat().st_size
