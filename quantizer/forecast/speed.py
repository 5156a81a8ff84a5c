"""How fast this machine computes what quantization consists of, measured in less than a second."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from runtime.host.machine import read_bandwidth, usable_cores

from ..algorithms.quantize_matrix import quantize_matrix
from ..parallel import one_blas_thread
from ..storage.scheme import QuantConfig, Scheme

_ROWS, _INPUTS = 512, 64  # of the matrix that is quantized: so few inputs that products count for nothing
_CONFIG = QuantConfig(Scheme(4, 32, scale_bits=8))
_BANDWIDTH_BYTES = 64 << 20


@dataclass(frozen=True)
class Speed:
    """Rates of one machine.

    Attributes:
        cores: that the process may use.
        product: float operations of matrix products in float32, a second, all cores together.
        memory: bytes read a second, all cores together.
        rtn, search, gptq, polish: seconds of one core for a weight, products aside; a round of polish.
    """

    cores: int
    product: float
    memory: float
    rtn: float
    search: float
    gptq: float
    polish: float


@cache
def this_machine() -> Speed:
    """Measured once a process."""
    cores, rng = usable_cores(), np.random.default_rng(0)
    weight = rng.standard_normal((_ROWS, _INPUTS), np.float32)
    hessian = np.eye(_INPUTS, dtype=np.float32) + np.float32(0.1)

    def quantized(method: str, polishing: int = 0) -> Callable[[], object]:
        known = hessian if method == "gptq" else None
        return lambda: quantize_matrix(weight, known, _CONFIG, method, np.float16, polishing)

    times = {name: _best(quantized(name)) / weight.size for name in ("rtn", "search", "gptq")}
    polished = _best(quantized("gptq", 2)) / weight.size
    return Speed(
        cores, _product(cores, rng), read_bandwidth(cores, _BANDWIDTH_BYTES), **times,
        polish=max(polished - times["gptq"], 0.0) / 2,
    )  # fmt: skip


def _product(cores: int, rng: np.random.Generator) -> float:
    """Of one core, as a product of GPTQ is, times the cores."""
    left = rng.standard_normal((512, 4096), np.float32)
    right = rng.standard_normal((4096, 1024), np.float32)
    with one_blas_thread():
        seconds = _best(lambda: left @ right, 3)
    return float(cores * 2.0 * left.size * right.shape[1] / seconds)


def _best(work: Callable[[], object], times: int = 2) -> float:
    def once() -> float:
        started = time.perf_counter()
        work()
        return time.perf_counter() - started

    work()
    return min(once() for _ in range(times))
