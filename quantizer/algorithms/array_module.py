"""Where the large matrix products of GPTQ and its polish run: numpy, or torch, on CUDA where there is a device.

Only what grows with the square of the inputs is done here; grids are searched and inputs rounded by numpy, a block of
inputs at a time. The environment variable `ONNXLM_ARRAYS` chooses: `numpy`, `torch`, or `auto`, the default, which
means torch where it is installed and sees a CUDA device. Both give the same codes but for ties, where the orders of
summation differ.
"""

import ctypes
import os
import sys
from functools import cache
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from runtime.errors import QuantizationError

from .factor import damp, damped_factor

Floats = npt.NDArray[np.float32]
VARIABLE = "ONNXLM_ARRAYS"


class ArrayModule(Protocol):
    """Products of float32 matrices; `Any` stands for the module's own arrays."""

    def hold(self, array: Floats) -> Any:
        """The same values as an array of this module."""

    def zeros(self, shape: tuple[int, int]) -> Any:
        """A new array, which can be written in parts."""

    def product(self, left: Any, right: Any) -> Floats:
        """`left @ right`."""

    def read(self, array: Any) -> Floats:
        """The values, for numpy."""

    def upper_factor(self, hessian: Floats) -> Any:
        """R in float32 with R Rᵀ = damped H."""


class NumpyArrays:
    """On the CPU; a product takes one thread, and slices of a matrix run in several."""

    def hold(self, array: Floats) -> Floats:
        return array

    def zeros(self, shape: tuple[int, int]) -> Floats:
        return np.zeros(shape, np.float32)

    def product(self, left: Floats, right: Floats) -> Floats:
        result: Floats = left @ right
        return result

    def read(self, array: Floats) -> Floats:
        return array

    def upper_factor(self, hessian: Floats) -> Floats:
        return damped_factor(hessian)


class TorchArrays:
    """On a device of torch: "cuda" or "cpu"."""

    def __init__(self, device: str) -> None:
        import torch

        self._torch, self._device = torch, device

    def hold(self, array: Floats) -> Any:
        return self._torch.from_numpy(np.ascontiguousarray(array)).to(self._device)

    def zeros(self, shape: tuple[int, int]) -> Any:
        return self._torch.zeros(shape, dtype=self._torch.float32, device=self._device)

    def product(self, left: Any, right: Any) -> Floats:
        return self.read(left @ right)

    def read(self, array: Any) -> Floats:
        values: Floats = array.cpu().numpy()
        return values

    def upper_factor(self, hessian: Floats) -> Any:
        flipped = self._torch.from_numpy(damp(hessian)).to(self._device).flip(0, 1)
        return self._torch.linalg.cholesky(flipped).flip(0, 1).to(self._torch.float32)


@cache
def array_module(name: str | None = None) -> ArrayModule:
    """The module called `name`: "numpy", "torch" or "auto"; by default what the environment says.

    Raises:
        QuantizationError: the name is none of these, or torch is not installed.
    """
    name = name or os.environ.get(VARIABLE, "auto")
    if name not in ("numpy", "torch", "auto"):
        raise QuantizationError(f"{VARIABLE}: {name!r} is not known; choose numpy, torch or auto.")
    if name == "torch" and find_spec("torch") is None:
        raise QuantizationError(f"{VARIABLE}: torch is not installed. Install it, or choose numpy or auto.")
    if name == "numpy" or (name == "auto" and not _has_cuda()):
        return NumpyArrays()
    return TorchArrays("cuda" if _has_cuda() else "cpu")


def _has_cuda() -> bool:
    """Whether torch can use a device; torch is not even imported where no driver is."""
    if find_spec("torch") is None or not _has_driver():
        return False
    import torch

    return bool(torch.cuda.is_available())


def _has_driver() -> bool:
    """Whether CUDA's driver can be loaded. (`find_library` would run a compiler and write a temporary file.)"""
    try:
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return False
    return True
