"""Slots of the cache in GPU memory: one capacity for all slots of a layer, grown by buckets."""

from collections.abc import Sequence

import numpy as np

from .cuda_device import ON_DEVICE, TO_DEVICE, TO_HOST, CudaDevice
from .host import Array, CacheTensor, next_bucket

_FIRST_CAPACITY = 256  # tokens


class CudaSlots:
    """ModelRunner's memory on the device. A token's slot of one head is contiguous, heads lie `capacity` tokens apart,
    so every copy is one two-dimensional copy per tensor.

    Args:
        tensors: all keys, then all values, layer by layer.
        slots: how many slots there are.
        limit: most tokens of one slot.
        device: where they live.
    """

    device = "cuda"

    def __init__(self, tensors: Sequence[CacheTensor], slots: int, limit: int, device: CudaDevice) -> None:
        self.slots = slots
        self.generation = 0
        self._tensors = tuple(tensors)
        self._limit = limit
        self._gpu = device
        self._capacities = [0] * len(self._tensors)
        self._addresses = [0] * len(self._tensors)
        self.reserve(min(_FIRST_CAPACITY, limit))

    @property
    def capacity(self) -> int:
        """Tokens per slot at present: those of the layer that holds the fewest."""
        return min(self._capacities, default=self._limit)

    @property
    def allocated(self) -> int:
        """Bytes of device memory that the tensors have."""
        return sum(self._size(i, capacity) for i, capacity in enumerate(self._capacities))

    def pointer(self, tensor: int, slot: int) -> int:
        """Device address of a slot of a cache tensor."""
        return self._addresses[tensor] + slot * self._tensors[tensor].token_bytes * self._capacities[tensor]

    def shape(self, tensor: int, slots: int) -> tuple[int, ...]:
        """`[slots, kv_heads, capacity, head_width]` of a run of slots."""
        return self._tensors[tensor].shape(slots, self._capacities[tensor])

    def reserve(self, length: int) -> None:
        """Make every slot able to hold `length` tokens, one layer after the other.

        A layer's key and value are both allocated and filled before either is replaced, and only then are the old ones
        freed. So a growth that fails at any point leaves every layer whole, some of them larger than others, and the
        peak of memory is what is held afterwards and one layer more.

        Raises:
            DeviceMemoryError: the device is full; every token is where it was.
        """
        if length <= self.capacity:
            return
        self.generation += 1  # first: bindings made before point to memory that may be freed below
        wanted = next_bucket(length, self._limit)
        layers = len(self._tensors) // 2
        for layer in range(layers):
            if self._capacities[layer] < wanted:
                self._grow([layer, layer + layers], wanted)

    def copy_slot(self, source: int, target: int, length: int) -> None:
        """Copy the live tokens of one slot over another slot."""
        for index, tensor in enumerate(self._tensors):
            pitch = self._capacities[index] * tensor.token_width
            places = self.pointer(index, target), pitch, self.pointer(index, source), pitch
            self._gpu.copy(*places, length * tensor.token_width, tensor.kv_heads, ON_DEVICE)

    def free_slot(self, slot: int, keep: int) -> None:
        """Slots share one capacity, so a single slot has nothing to give back."""

    def evict_window(self, slot: int, before: int, after: int) -> None:
        """Nothing can be given back by the page."""

    def read(self, slot: int, start: int, stop: int) -> list[Array]:
        """Host copies of positions `[start, stop)` of every tensor."""
        block = [np.empty((t.kv_heads, stop - start, t.head_width), t.dtype) for t in self._tensors]
        for index, (tensor, part) in enumerate(zip(self._tensors, block, strict=True)):
            width, pitch = (stop - start) * tensor.token_width, self._capacities[index] * tensor.token_width
            source = self.pointer(index, slot) + start * tensor.token_width
            self._gpu.copy(part.ctypes.data, width, source, pitch, width, tensor.kv_heads, TO_HOST)
        self._gpu.finish()
        return block

    def write(self, slot: int, start: int, block: Sequence[Array]) -> None:
        """Put a host block back at `start`."""
        self.reserve(start + block[0].shape[1])
        parts = [np.ascontiguousarray(part) for part in block]
        for index, (tensor, part) in enumerate(zip(self._tensors, parts, strict=True)):
            width, pitch = part.shape[1] * tensor.token_width, self._capacities[index] * tensor.token_width
            target = self.pointer(index, slot) + start * tensor.token_width
            self._gpu.copy(target, pitch, part.ctypes.data, width, width, tensor.kv_heads, TO_DEVICE)
        self._gpu.finish()  # before `parts` are gone

    def close(self) -> None:
        """Free the device memory."""
        for address in filter(None, self._addresses):
            self._gpu.release(address)
        self._addresses = [0] * len(self._tensors)
        self._capacities = [0] * len(self._tensors)

    def _grow(self, indices: list[int], capacity: int) -> None:
        """Replace these tensors by larger ones with the same tokens: all of them, or none."""
        grown: list[int] = []
        try:
            for index in indices:
                grown.append(self._gpu.allocate(self._size(index, capacity)))  # noqa: PERF401  # freed if one fails
            for index, address in zip(indices, grown, strict=True):
                self._fill(index, address, capacity)
            self._gpu.finish()  # before the old ones are freed
        except BaseException:
            for address in grown:
                self._gpu.release(address)
            raise
        for index, address in zip(indices, grown, strict=True):
            old, self._addresses[index], self._capacities[index] = self._addresses[index], address, capacity
            if old:
                self._gpu.release(old)

    def _fill(self, index: int, address: int, capacity: int) -> None:
        old, tensor = self._capacities[index], self._tensors[index]
        if old:
            width, heads = tensor.token_width, self.slots * tensor.kv_heads
            self._gpu.copy(
                address, capacity * width, self._addresses[index], old * width, old * width, heads, ON_DEVICE
            )

    def _size(self, index: int, capacity: int) -> int:
        return self._tensors[index].token_bytes * self.slots * capacity
