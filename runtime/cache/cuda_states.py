"""Places of states in GPU memory."""

from collections.abc import Sequence

import numpy as np

from .cuda_device import ON_DEVICE, TO_DEVICE, TO_HOST, CudaDevice
from .host import Array
from .state_memory import StateTensor


class CudaStates:
    """StateMemory on the device. A place is contiguous, so every copy is one line.

    Args:
        tensors: the states of one sequence.
        state_slots: how many places there are.
        device: where they live.
    """

    device = "cuda"

    def __init__(self, tensors: Sequence[StateTensor], state_slots: int, device: CudaDevice) -> None:
        self.tensors = tuple(tensors)
        self._gpu = device
        self._addresses: list[int] = []
        try:
            for tensor in self.tensors:
                self._addresses.append(device.allocate(tensor.nbytes * state_slots))
        except BaseException:
            self.close()
            raise

    def pointer(self, tensor: int, state_slot: int) -> int:
        """Device address of a place of a state tensor."""
        return self._addresses[tensor] + state_slot * self.tensors[tensor].nbytes

    def copy(self, source: int, target: int) -> None:
        """Copy all states of one place over another place."""
        for index, tensor in enumerate(self.tensors):
            self._gpu.copy_line(self.pointer(index, target), self.pointer(index, source), tensor.nbytes, ON_DEVICE)

    def clear(self, state_slot: int) -> None:
        """Make all states of a place zeros."""
        self.write(state_slot, [np.zeros(tensor.sizes, np.float32) for tensor in self.tensors])

    def discard(self, state_slot: int) -> None:
        """Places are allocated together, so a single one has nothing to give back."""

    def read(self, state_slot: int) -> list[Array]:
        """Host copies of a place of every tensor."""
        block = [np.empty(tensor.sizes, np.float32) for tensor in self.tensors]
        for index, part in enumerate(block):
            self._gpu.copy_line(part.ctypes.data, self.pointer(index, state_slot), part.nbytes, TO_HOST)
        self._gpu.finish()
        return block

    def write(self, state_slot: int, block: Sequence[Array]) -> None:
        """Put a host block back."""
        parts = [np.ascontiguousarray(part) for part in block]
        for index, part in enumerate(parts):
            self._gpu.copy_line(self.pointer(index, state_slot), part.ctypes.data, part.nbytes, TO_DEVICE)
        self._gpu.finish()  # before `parts` are gone

    def close(self) -> None:
        """Free the device memory."""
        for address in self._addresses:
            self._gpu.release(address)
        self._addresses = []
