"""Copies between and within host and GPU memory, by the CUDA runtime."""

import ctypes
from typing import Any

from ..errors import ExecutionError

TO_DEVICE, TO_HOST, ON_DEVICE = 1, 2, 3  # cudaMemcpyKind
_RUNTIMES = ("libcudart.so.13", "libcudart.so.12", "libcudart.so")


class CudaCopies:
    """The runtime library, loaded."""

    def __init__(self) -> None:
        self._runtime = load_cuda_runtime()

    def copy(
        self, target: int, target_pitch: int, source: int, source_pitch: int, width: int, height: int, kind: int
    ) -> None:
        """Copy `height` lines of `width` bytes, which lie as many bytes apart as the pitches say."""
        status = self._runtime.cudaMemcpy2D(target, target_pitch, source, source_pitch, width, height, kind)
        if status:
            raise ExecutionError(f"cudaMemcpy2D failed with CUDA error {status} while copying the cache.")

    def finish(self) -> None:
        """ONNX Runtime computes on a stream of its own, which does not wait for these copies."""
        if status := self._runtime.cudaDeviceSynchronize():
            raise ExecutionError(f"CUDA error {status} after copying the cache.")


def load_cuda_runtime() -> Any:
    """The CUDA runtime library."""
    for name in _RUNTIMES:
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        library.cudaMemcpy2D.argtypes = [pointer, size, pointer, size, size, size, ctypes.c_int]
        return library
    raise ExecutionError(f"None of {', '.join(_RUNTIMES)} can be loaded: pip install 'onnxlm[gpu]' brings it.")
