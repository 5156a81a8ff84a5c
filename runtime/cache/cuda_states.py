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

    def __init__(self, tensors: Sequence[StateTensor], state_slots: int) -> None:
        self.tensors = tuple(tensors)
        self._copies = CudaCopies()
        self._values = [self._new(tensor, state_slots) for tensor in self.tensors]

    def pointer(self, tensor: int, state_slot: int) -> int:
        """Device address of a place of a state tensor."""
        return int(self._values[tensor].data_ptr()) + state_slot * self.tensors[tensor].nbytes

    def copy(self, source: int, target: int) -> None:
        """Copy all states of one place over another place."""
        for index, tensor in enumerate(self.tensors):
            self._line(self.pointer(index, target), self.pointer(index, source), tensor.nbytes, ON_DEVICE)
        self._copies.finish()

    def clear(self, state_slot: int) -> None:
        """Make all states of a place zeros."""
        self.write(state_slot, [np.zeros(tensor.sizes, np.float32) for tensor in self.tensors])

    def discard(self, state_slot: int) -> None:
        """Places are allocated together, so a single one has nothing to give back."""

    def read(self, state_slot: int) -> list[Array]:
        """Host copies of a place of every tensor."""
        block = [np.empty(tensor.sizes, np.float32) for tensor in self.tensors]
        for index, part in enumerate(block):
            self._line(part.ctypes.data, self.pointer(index, state_slot), part.nbytes, TO_HOST)
        return block

    def write(self, state_slot: int, block: Sequence[Array]) -> None:
        """Put a host block back."""
        for index, part in enumerate(block):
            source = np.ascontiguousarray(part)
            self._line(self.pointer(index, state_slot), source.ctypes.data, source.nbytes, TO_DEVICE)
        self._copies.finish()

    def close(self) -> None:
        """Free the device memory."""
        self._values = []

    def _new(self, tensor: StateTensor, state_slots: int) -> Any:
        shape = [state_slots, *tensor.sizes]
        with translated(f"allocating {tensor.name} {shape} on the GPU (lower max_concurrency)"):
            return onnxruntime().OrtValue.ortvalue_from_shape_and_type(shape, np.float32, self.device, 0)

    def _line(self, target: int, source: int, size: int, kind: int) -> None:
        self._copies.copy(target, size, source, size, size, 1, kind)
