"""The CUDA runtime as far as the cache calls it, on host memory: what is copied can be compared."""

import ctypes
from collections.abc import Callable
from typing import Any


class HostRuntime:
    """The calls of the CUDA runtime that the cache makes, on host memory; `fail_at` is the allocation that fails."""

    def __init__(self) -> None:
        self.blocks: dict[int, ctypes.Array[ctypes.c_char]] = {}
        self.allocations, self.fail_at, self.status = 0, -1, 0

    def cudaMalloc(self, pointer: Any, size: int) -> int:  # noqa: N802
        self.allocations += 1
        if self.allocations == self.fail_at:
            return 2
        block = ctypes.create_string_buffer(size)
        pointer._obj.value = ctypes.addressof(block)
        self.blocks[ctypes.addressof(block)] = block
        return 0

    def cudaFree(self, pointer: int) -> int:  # noqa: N802
        del self.blocks[pointer]
        return 0

    def cudaMemcpy2DAsync(  # noqa: N802
        self, target: int, target_pitch: int, source: int, source_pitch: int, width: int, height: int, *_: int
    ) -> int:
        assert width <= min(target_pitch, source_pitch)
        for line in range(height):
            ctypes.memmove(target + line * target_pitch, source + line * source_pitch, width)
        return self.status

    def cudaMemcpyAsync(self, target: int, source: int, size: int, *_: int) -> int:  # noqa: N802
        ctypes.memmove(target, source, size)
        return self.status

    def cudaGetErrorName(self, status: int) -> bytes:  # noqa: N802
        return b"cudaErrorOfTheTest"

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *_: 0
