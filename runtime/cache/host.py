"""Memory of keys and values: slots of tokens, and nothing about any model.

A cache tensor is `[slots, kv_heads, capacity, head_dim]`, slots outermost, so a slot and any leading run of slots are
contiguous and can be bound to a graph without a copy. A sequence lives in one slot, at positions `[0, length)`; what
lies beyond is never read, so slots are not cleared.

Two kinds of memory hold the tensors:

    PagedSlots      full capacity reserved, pages committed by the operating system when written (Linux, macOS)
    GrowingSlots    one capacity for all slots, grown by buckets (CUDA, and systems without such pages)
"""

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from .pages import PAGE, reserve_pages

Array = npt.NDArray[Any]
GROWTH_BUCKET = 256  # tokens


@dataclass(frozen=True)
class CacheTensor:
    """One key or value tensor of the cache; `window` is how many positions its layer looks back, or None for all."""

    name: str
    kv_heads: int
    head_width: int  # stored elements per head and token: head_dim, or half of it for packed 4-bit codes
    dtype: np.dtype[Any]
    window: int | None = None

    @property
    def token_bytes(self) -> int:
        """Bytes of one token over all heads."""
        return self.kv_heads * self.head_width * self.dtype.itemsize

    @property
    def token_width(self) -> int:
        """Bytes of one token of one head."""
        return self.head_width * self.dtype.itemsize

    def shape(self, slots: int, capacity: int) -> tuple[int, int, int, int]:
        """`[slots, kv_heads, capacity, head_width]`."""
        return (slots, self.kv_heads, capacity, self.head_width)


class CacheSlots(Protocol):
    """Where the cache tensors live. `generation` changes whenever their addresses do."""

    slots: int
    generation: int
    device: str  # "cpu" or "cuda"

    @property
    def capacity(self) -> int:
        """Tokens that a slot can hold without growing."""

    def pointer(self, tensor: int, slot: int) -> int:
        """Address of a slot of a cache tensor."""

    def shape(self, tensor: int, slots: int) -> tuple[int, ...]:
        """`[slots, kv_heads, capacity, head_width]` of a run of slots."""

    def reserve(self, length: int) -> None:
        """Make every slot able to hold `length` tokens."""

    def copy_slot(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` tokens of one slot over another slot."""

    def free_slot(self, slot: int, keep: int) -> None:
        """Give the slot's memory back, except that of its first `keep` tokens."""

    def evict_window(self, slot: int, before: int, after: int) -> None:
        """Give back what windowed layers no longer see, now that the slot grew from `before` to `after` tokens."""

    def read(self, slot: int, start: int, stop: int) -> list[Array]:
        """Copies of positions `[start, stop)`, one `[kv_heads, stop - start, head_width]` array per tensor."""

    def write(self, slot: int, start: int, block: Sequence[Array]) -> None:
        """Put back what `read` returned, at position `start`."""

    def close(self) -> None:
        """Drop the memory."""


class HostSlots:
    """What both kinds of host memory do with numpy arrays `[slots, kv_heads, capacity, head_width]`."""

    device = "cpu"
    arrays: list[Array]

    def pointer(self, tensor: int, slot: int) -> int:
        """Address of a slot of a cache tensor."""
        array = self.arrays[tensor]
        return int(array.ctypes.data) + slot * array.strides[0]

    def shape(self, tensor: int, slots: int) -> tuple[int, ...]:
        """`[slots, kv_heads, capacity, head_width]` of a run of slots."""
        return (slots, *self.arrays[tensor].shape[1:])

    def copy_slot(self, source: int, target: int, length: int) -> None:
        """Copy the live tokens of one slot over another slot."""
        for array in self.arrays:
            array[target, :, :length] = array[source, :, :length]

    def read(self, slot: int, start: int, stop: int) -> list[Array]:
        """Copies of positions `[start, stop)` of every tensor."""
        return [array[slot, :, start:stop].copy() for array in self.arrays]

    def write(self, slot: int, start: int, block: Sequence[Array]) -> None:
        """Put a block back at `start`."""
        for array, part in zip(self.arrays, block, strict=True):
            array[slot, :, start : start + part.shape[1]] = part


class PagedSlots(HostSlots):
    """Slots of anonymous private memory: reserving costs nothing, a page is committed when first written.

    The capacity is rounded up so that every head of every slot starts on a page of its own (release is exact, and a
    short prompt touches one page per head) and so that the number of pages per head is odd: at a power-of-two
    stride the heads compete for the same cache sets, which costs attention about a sixth of its speed.
    """

    def __init__(self, tensors: Sequence[CacheTensor], slots: int, capacity: int) -> None:
        self.slots = slots
        self.generation = 0
        self._tensors = tuple(tensors)
        self._capacity = paged_capacity(self._tensors, capacity)
        sizes = [t.token_bytes * slots * self._capacity for t in self._tensors]
        self._memory = reserve_pages(sum(sizes))
        self._starts = np.cumsum([0, *sizes[:-1]]).tolist()
        self.arrays = [
            np.frombuffer(self._memory, t.dtype, size // t.dtype.itemsize, start).reshape(
                t.shape(slots, self._capacity)
            )
            for t, size, start in zip(self._tensors, sizes, self._starts, strict=True)
        ]

    @property
    def capacity(self) -> int:
        """Tokens per slot, at least what was asked for."""
        return self._capacity

    def reserve(self, length: int) -> None:
        """Slots have their full capacity from the start."""
        assert length <= self._capacity

    def free_slot(self, slot: int, keep: int) -> None:
        """Give all whole pages beyond `keep` tokens back to the operating system."""
        for tensor, start in zip(self._tensors, self._starts, strict=True):
            if keep:
                self._discard(tensor, start, slot, keep, self._capacity)
            else:
                size = tensor.token_bytes * self._capacity
                self._memory.madvise(mmap.MADV_DONTNEED, start + slot * size, size)

    def evict_window(self, slot: int, before: int, after: int) -> None:
        """Give back whole pages of windowed layers that lie before their window; they read as zeros from then on."""
        for tensor, start in zip(self._tensors, self._starts, strict=True):
            if tensor.window is not None and after > tensor.window:
                self._discard(tensor, start, slot, max(0, before - tensor.window), after - tensor.window, grown=True)

    def _discard(
        self, tensor: CacheTensor, start: int, slot: int, first: int, stop: int, *, grown: bool = False
    ) -> None:
        """Discard the pages that lie within positions `[first, stop)`; if `grown`, also the one `first` lies in."""
        width = tensor.head_width * tensor.dtype.itemsize
        low, high = (first * width if grown else first * width + PAGE - 1) // PAGE, stop * width
        size = (high // PAGE - low) * PAGE
        if size <= 0:
            return
        for head in range(tensor.kv_heads):
            base = start + (slot * tensor.kv_heads + head) * width * self._capacity
            self._memory.madvise(mmap.MADV_DONTNEED, base + low * PAGE, size)

    def close(self) -> None:
        """Give every page back now; the reservation itself goes when the last binding to it does."""
        self._memory.madvise(mmap.MADV_DONTNEED)
        self.arrays = []


class GrowingSlots(HostSlots):
    """Slots in plain host memory with one capacity for all, grown by buckets: allocate, copy, free."""

    def __init__(self, tensors: Sequence[CacheTensor], slots: int, limit: int) -> None:
        self.slots = slots
        self.generation = 0
        self._tensors = tuple(tensors)
        self._limit = limit
        self._capacity = 0
        self.arrays: list[Array] = []
        self.reserve(min(GROWTH_BUCKET, limit))

    @property
    def capacity(self) -> int:
        """Tokens per slot at present."""
        return self._capacity

    def reserve(self, length: int) -> None:
        """Grow every tensor to the next bucket that holds `length` tokens."""
        if length <= self._capacity:
            return
        capacity = next_bucket(length, self._limit)
        grown = [np.zeros(t.shape(self.slots, capacity), t.dtype) for t in self._tensors]
        for new, old in zip(grown, self.arrays, strict=False):
            new[:, :, : self._capacity] = old
        self.arrays, self._capacity = grown, capacity
        self.generation += 1

    def free_slot(self, slot: int, keep: int) -> None:
        """Slots share one capacity, so a single slot has nothing to give back."""

    def evict_window(self, slot: int, before: int, after: int) -> None:
        """Nothing can be given back by the page."""

    def close(self) -> None:
        """Drop the memory."""
        self.arrays = []


def paged_capacity(tensors: Sequence[CacheTensor], capacity: int) -> int:
    """The smallest capacity of at least `capacity` tokens that is an odd number of pages for every head."""
    page = 1
    for tensor in tensors:
        width = tensor.head_width * tensor.dtype.itemsize
        page = lcm(page, lcm(width, PAGE) // width)
    pages = -(-capacity // page)
    return page * (pages + 1 - pages % 2)


def next_bucket(length: int, limit: int) -> int:
    """The capacity to grow to for `length` tokens: half as much again and whole buckets, never beyond `limit`."""
    wanted = length + length // 2
    return max(length, min(limit, -(-wanted // GROWTH_BUCKET) * GROWTH_BUCKET))
