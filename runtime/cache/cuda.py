"""Slots of the cache in GPU memory: one capacity for all slots, grown by buckets, copied by the CUDA runtime."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..ort.session import onnxruntime, translated
from .cuda_copies import ON_DEVICE, TO_DEVICE, TO_HOST, CudaCopies
from .host import Array, CacheTensor, next_bucket

_FIRST_CAPACITY = 256


class CudaSlots:
    """ModelRunner's memory on the device. A token's slot of one head is contiguous, heads lie `capacity` tokens apart,
    so every copy is one two-dimensional copy per tensor.
    """

    device = "cuda"

    def __init__(self, tensors: Sequence[CacheTensor], slots: int, limit: int) -> None:
        self.slots = slots
        self.generation = 0
        self._tensors = tuple(tensors)
        self._limit = limit
        self._capacity = 0
        self._values: list[Any] = []
        self._copies = CudaCopies()
        self.reserve(min(_FIRST_CAPACITY, limit))

    @property
    def capacity(self) -> int:
        """Tokens per slot at present."""
        return self._capacity

    def pointer(self, tensor: int, slot: int) -> int:
        """Device address of a slot of a cache tensor."""
        return int(self._values[tensor].data_ptr()) + slot * self._tensors[tensor].token_bytes * self._capacity

    def shape(self, tensor: int, slots: int) -> tuple[int, ...]:
        """`[slots, kv_heads, capacity, head_width]` of a run of slots."""
        return self._tensors[tensor].shape(slots, self._capacity)

    def reserve(self, length: int) -> None:
        """Grow every tensor to the next bucket that holds `length` tokens: allocate, copy, free, one at a time."""
        if length <= self._capacity:
            return
        old, new = self._capacity, next_bucket(length, self._limit)
        for index, tensor in enumerate(self._tensors):
            grown = self._new(tensor, new)
            if old:
                width = tensor.head_width * tensor.dtype.itemsize
                heads = self.slots * tensor.kv_heads
                source, target = int(self._values[index].data_ptr()), int(grown.data_ptr())
                self._copies.copy(target, new * width, source, old * width, old * width, heads, ON_DEVICE)
                self._copies.finish()  # before the old tensor is freed
                self._values[index] = grown
            else:
                self._values.append(grown)
        self._capacity = new
        self.generation += 1

    def copy_slot(self, source: int, target: int, length: int) -> None:
        """Copy the live tokens of one slot over another slot."""
        for index, tensor in enumerate(self._tensors):
            width = tensor.head_width * tensor.dtype.itemsize
            pitch = self._capacity * width
            state_slots = self.pointer(index, target), pitch, self.pointer(index, source), pitch
            self._copies.copy(*state_slots, length * width, tensor.kv_heads, ON_DEVICE)
        self._copies.finish()

    def free_slot(self, slot: int, keep: int) -> None:
        """Slots share one capacity, so a single slot has nothing to give back."""

    def evict_window(self, slot: int, before: int, after: int) -> None:
        """Nothing can be given back by the page."""

    def read(self, slot: int, start: int, stop: int) -> list[Array]:
        """Host copies of positions `[start, stop)` of every tensor."""
        block = [np.empty((t.kv_heads, stop - start, t.head_width), t.dtype) for t in self._tensors]
        for index, (tensor, part) in enumerate(zip(self._tensors, block, strict=True)):
            width = tensor.head_width * tensor.dtype.itemsize
            size, source = (stop - start) * width, self.pointer(index, slot) + start * width
            self._copies.copy(part.ctypes.data, size, source, self._capacity * width, size, tensor.kv_heads, TO_HOST)
        return block

    def write(self, slot: int, start: int, block: Sequence[Array]) -> None:
        """Put a host block back at `start`."""
        self.reserve(start + block[0].shape[1])
        for index, (tensor, part) in enumerate(zip(self._tensors, block, strict=True)):
            width = tensor.head_width * tensor.dtype.itemsize
            size, target = part.shape[1] * width, self.pointer(index, slot) + start * width
            source = np.ascontiguousarray(part)
            self._copies.copy(
                target, self._capacity * width, source.ctypes.data, size, size, tensor.kv_heads, TO_DEVICE
            )
        self._copies.finish()

    def close(self) -> None:
        """Free the device memory."""
        self._values = []

    def _new(self, tensor: CacheTensor, capacity: int) -> Any:
        shape = list(tensor.shape(self.slots, capacity))
        with translated(f"allocating {tensor.name} {shape} on the GPU (lower --kv-memory or max_concurrency)"):
            return onnxruntime().OrtValue.ortvalue_from_shape_and_type(shape, tensor.dtype.type, self.device, 0)
