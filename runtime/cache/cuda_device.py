"""The GPU as the cache and the steps see it: its memory, copies, pinned host memory, a stream, and what is free.

Everything comes from the CUDA runtime library that ONNX Runtime's provider uses too, so both see the same device.
Nobody but `ort/` and `cache/cuda*` imports this file.
"""

import ctypes
import functools
import weakref
from typing import Any

import numpy as np

from ..errors import DeviceLostError, DeviceMemoryError, ExecutionError
from .host import Array

TO_DEVICE, TO_HOST, ON_DEVICE = 1, 2, 3  # cudaMemcpyKind
_RUNTIMES = ("libcudart.so.13", "libcudart.so.12", "libcudart.so")
_OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation
_NON_BLOCKING = 1  # cudaStreamNonBlocking: does not wait for the default stream
_NAMES = {
    "Malloc": "allocating",
    "Free": "freeing",
    "Memcpy2DAsync": "copying",
    "StreamSynchronize": "waiting for the GPU",
}


class CudaDevice:
    """One GPU and one stream on it. Copies are ordered behind whatever the stream was given before.

    Attributes:
        stream: the handle of the stream; ONNX Runtime computes on it too.
        allocated: bytes that were allocated here and not freed.
    """

    def __init__(self, runtime: Any = None) -> None:
        self._runtime = runtime or load_cuda_runtime()
        self._sizes: dict[int, int] = {}
        stream = ctypes.c_void_p()
        self._call("StreamCreateWithFlags", ctypes.byref(stream), _NON_BLOCKING)
        self.stream = int(stream.value or 0)

    @property
    def allocated(self) -> int:
        """Bytes of device memory that are held."""
        return sum(self._sizes.values())

    def free_memory(self) -> int:
        """Bytes that are free on the device, whoever has the others."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("MemGetInfo", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def allocate(self, size: int) -> int:
        """The address of `size` new bytes.

        Raises:
            DeviceMemoryError: the device has not as much.
        """
        pointer = ctypes.c_void_p()
        self._call("Malloc", ctypes.byref(pointer), max(1, size), size=size)
        address = int(pointer.value or 0)
        self._sizes[address] = size
        return address

    def release(self, address: int) -> None:
        """Free what `allocate` returned."""
        del self._sizes[address]
        self._call("Free", address)

    def pinned(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """A host array of zeros that the device copies from and to without a detour. It is freed with its last view."""
        kind = np.dtype(dtype)
        size, pointer = max(1, int(np.prod(shape)) * kind.itemsize), ctypes.c_void_p()
        self._call("MallocHost", ctypes.byref(pointer), size)
        address = int(pointer.value or 0)
        ctypes.memset(address, 0, size)
        buffer = (ctypes.c_byte * size).from_address(address)
        weakref.finalize(buffer, self._runtime.cudaFreeHost, address)
        return np.frombuffer(buffer, kind, int(np.prod(shape))).reshape(shape)

    def copy(
        self, target: int, target_pitch: int, source: int, source_pitch: int, width: int, height: int, kind: int
    ) -> None:
        """Copy `height` lines of `width` bytes, which lie as many bytes apart as the pitches say, on the stream."""
        self._call("Memcpy2DAsync", target, target_pitch, source, source_pitch, width, height, kind, self.stream)

    def copy_line(self, target: int, source: int, size: int, kind: int) -> None:
        """Copy `size` bytes, on the stream."""
        self._call("MemcpyAsync", target, source, size, kind, self.stream)

    def finish(self) -> None:
        """Wait until the stream has done everything that it was given."""
        self._call("StreamSynchronize", self.stream)

    def close(self) -> None:
        """Free all memory and the stream. What fails here is of no use to anybody: the process still ends."""
        self._runtime.cudaStreamSynchronize(self.stream)
        for address in self._sizes:
            self._runtime.cudaFree(address)
        self._sizes = {}
        if self.stream:
            self._runtime.cudaStreamDestroy(self.stream)
            self.stream = 0

    def _call(self, name: str, *arguments: Any, size: int = 0) -> None:
        status = getattr(self._runtime, f"cuda{name}")(*arguments)
        if not status:
            return
        self._runtime.cudaGetLastError()  # else ONNX Runtime's next check takes this error for its own
        if status == _OUT_OF_MEMORY:
            raise DeviceMemoryError(
                f"The GPU has not {size:,} bytes free for keys and values. Lower --kv-memory or --max-concurrency."
            )
        doing = _NAMES.get(name, f"cuda{name}")
        raise DeviceLostError(
            f"CUDA error {status} ({_name_of(self._runtime, status)}) while {doing}. The GPU cannot be used by this "
            "process any more: restart it, and look at `dmesg` and `nvidia-smi` if that does not help."
        )


@functools.cache
def load_cuda_runtime() -> Any:
    """The CUDA runtime library, with the argument types that addresses need.

    Raises:
        ExecutionError: none can be loaded.
    """
    for name in _RUNTIMES:
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        _declare(library)
        return library
    raise ExecutionError(f"None of {', '.join(_RUNTIMES)} can be loaded: pip install 'onnxlm[gpu]' brings it.")


def _declare(library: Any) -> None:
    pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    arguments = {
        "Malloc": [pointer, size], "Free": [pointer], "MallocHost": [pointer, size], "FreeHost": [pointer],
        "MemGetInfo": [pointer, pointer], "StreamCreateWithFlags": [pointer, ctypes.c_uint],
        "StreamSynchronize": [pointer], "StreamDestroy": [pointer],
        "MemcpyAsync": [pointer, pointer, size, number, pointer],
        "Memcpy2DAsync": [pointer, size, pointer, size, size, size, number, pointer],
    }  # fmt: skip
    for name, types in arguments.items():
        getattr(library, f"cuda{name}").argtypes = types
    library.cudaGetErrorName.restype = ctypes.c_char_p


def _name_of(library: Any, status: int) -> str:
    name = library.cudaGetErrorName(status)
    return name.decode() if isinstance(name, bytes) else str(name)
