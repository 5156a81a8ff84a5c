"""Places of states in GPU memory."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..ort.session import onnxruntime, translated
from .cuda_copies import ON_DEVICE, TO_DEVICE, TO_HOST, CudaCopies
from .host import Array
from .state_memory import StateTensor


class CudaStates:
    """StateMemory on the device. A place is contiguous, so every copy is one line."""

    device = "cuda"

    def __init__(self, tensors: Sequence[StateTensor], places: int) -> None:
        self.tensors = tuple(tensors)
        self._copies = CudaCopies()
        self._values = [self._new(tensor, places) for tensor in self.tensors]

    def pointer(self, tensor: int, place: int) -> int:
        """Device address of a place of a state tensor."""
        return int(self._values[tensor].data_ptr()) + place * self.tensors[tensor].nbytes

    def copy(self, source: int, target: int) -> None:
        """Copy all states of one place over another place."""
        for index, tensor in enumerate(self.tensors):
            self._line(self.pointer(index, target), self.pointer(index, source), tensor.nbytes, ON_DEVICE)
        self._copies.finish()

    def clear(self, place: int) -> None:
        """Make all states of a place zeros."""
        self.write(place, [np.zeros(tensor.sizes, np.float32) for tensor in self.tensors])

    def discard(self, place: int) -> None:
        """Places are allocated together, so a single one has nothing to give back."""

    def read(self, place: int) -> list[Array]:
        """Host copies of a place of every tensor."""
        block = [np.empty(tensor.sizes, np.float32) for tensor in self.tensors]
        for index, part in enumerate(block):
            self._line(part.ctypes.data, self.pointer(index, place), part.nbytes, TO_HOST)
        return block

    def write(self, place: int, block: Sequence[Array]) -> None:
        """Put a host block back."""
        for index, part in enumerate(block):
            source = np.ascontiguousarray(part)
            self._line(self.pointer(index, place), source.ctypes.data, source.nbytes, TO_DEVICE)
        self._copies.finish()

    def close(self) -> None:
        """Free the device memory."""
        self._values = []

    def _new(self, tensor: StateTensor, places: int) -> Any:
        shape = [places, *tensor.sizes]
        with translated(f"allocating {tensor.name} {shape} on the GPU (lower max_concurrency)"):
            return onnxruntime().OrtValue.ortvalue_from_shape_and_type(shape, np.float32, self.device, 0)

    def _line(self, target: int, source: int, size: int, kind: int) -> None:
        self._copies.copy(target, size, source, size, size, 1, kind)
