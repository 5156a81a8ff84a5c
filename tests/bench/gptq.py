"""How fast GPTQ and its polish are: N · K² over seconds, for one matrix with the Hessian's factor counted.

python tests/bench/gptq.py --rows 4096 --inputs 14336      # the largest matrix of an 8B model
ONNXLM_ARRAYS=torch python tests/bench/gptq.py             # through torch, on CUDA where there is a device
"""

import argparse
import resource
import time

import numpy as np

from quantizer.algorithms.hessian import Hessian
from quantizer.algorithms.quantize_matrix import quantize_matrix
from quantizer.storage.scheme import QuantConfig, Scheme


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--inputs", type=int, default=14336)
    parser.add_argument("--polish", type=int, default=2)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    x = rng.standard_normal((512, options.inputs), np.float32) * np.geomspace(1, 0.1, options.inputs, dtype=np.float32)
    values = x.T @ x / np.float32(len(x))
    values.flat[:: options.inputs + 1] += np.float32(0.1) * values.diagonal().mean()
    weight = rng.standard_normal((options.rows, options.inputs), np.float32)
    work = options.rows * options.inputs**2 / 1e9
    for _ in range(2):
        hessian, started = Hessian(values), time.perf_counter()
        _ = hessian.factor
        factored = time.perf_counter() - started
        quantize_matrix(weight, hessian, QuantConfig(Scheme(4, 32, scale_bits=8)), "gptq", np.float16, options.polish)
        seconds = time.perf_counter() - started
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(
            f"{options.rows} x {options.inputs}: {seconds:.1f} s, of them {factored:.1f} s for the factor; "
            f"{work / seconds:.1f} GFLOP/s of N·K²; peak {peak:.2f} GiB",
            flush=True,
        )


if __name__ == "__main__":
    main()
