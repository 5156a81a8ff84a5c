"""Memory of states: numbered places of a fixed size, and nothing about slots or models.

A state tensor is `[places, …]`, places outermost, so a place and any run of places are contiguous and can be bound to
a graph without a copy.
"""

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol

import numpy as np

from .host import Array
from .pages import PAGE, pages_supported, reserve_pages, whole_pages


@dataclass(frozen=True)
class StateTensor:
    """One float32 state of a layer, of a sequence: its sizes behind the batch."""

    name: str
    sizes: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of one sequence."""
        return prod(self.sizes) * 4


class StateMemory(Protocol):
    """Where the states lie; none of its addresses ever changes."""

    tensors: tuple[StateTensor, ...]
    device: str  # "cpu" or "cuda"

    def pointer(self, tensor: int, state_slot: int) -> int:
        """Address of a place of a state tensor."""

    def copy(self, source: int, target: int) -> None:
        """Copy all states of one place over another place."""

    def clear(self, state_slot: int) -> None:
        """Make all states of a place zeros."""

    def discard(self, state_slot: int) -> None:
        """What a place holds is not needed any more: give its memory back."""

    def read(self, state_slot: int) -> list[Array]:
        """Host copies of a place, one array per tensor."""

    def write(self, state_slot: int, block: Sequence[Array]) -> None:
        """Put back what `read` returned."""

    def close(self) -> None:
        """Drop the memory."""


class HostStates:
    """Places in host memory, committed when they are first written."""

    device = "cpu"

    def __init__(self, tensors: Sequence[StateTensor], state_slots: int) -> None:
        self.tensors = tuple(tensors)
        sizes = [-(-tensor.nbytes * state_slots // PAGE) * PAGE for tensor in self.tensors]
        self._starts = np.cumsum([0, *sizes])[:-1].tolist()
        self._pages = reserve_pages(sum(sizes)) if sizes and pages_supported() else None
        memory = self._pages or np.zeros(sum(sizes), np.uint8)
        self.arrays = [
            np.frombuffer(memory, np.float32, tensor.nbytes * state_slots // 4, start).reshape(
                state_slots, *tensor.sizes
            )
            for tensor, start in zip(self.tensors, self._starts, strict=True)
        ]

    def pointer(self, tensor: int, state_slot: int) -> int:
        """Address of a place of a state tensor."""
        array = self.arrays[tensor]
        return int(array.ctypes.data) + state_slot * array.strides[0]

    def copy(self, source: int, target: int) -> None:
        """Copy all states of one place over another place."""
        for array in self.arrays:
            array[target] = array[source]

    def clear(self, state_slot: int) -> None:
        """Make all states of a place zeros."""
        for array in self.arrays:
            array[state_slot] = 0

    def discard(self, state_slot: int) -> None:
        """Give the whole pages of a place back to the operating system."""
        if self._pages is None:
            return
        for tensor, start in zip(self.tensors, self._starts, strict=True):
            first, size = whole_pages(start + state_slot * tensor.nbytes, start + (state_slot + 1) * tensor.nbytes)
            if size:
                self._pages.madvise(mmap.MADV_DONTNEED, first, size)

    def read(self, state_slot: int) -> list[Array]:
        """Copies of a place of every tensor."""
        return [array[state_slot].copy() for array in self.arrays]

    def write(self, state_slot: int, block: Sequence[Array]) -> None:
        """Put a block back."""
        for array, part in zip(self.arrays, block, strict=True):
            array[state_slot] = part

    def close(self) -> None:
        """Give every page back now; the reservation itself goes when the last binding to it does."""
        self.arrays = []
        if self._pages is not None:
            self._pages.madvise(mmap.MADV_DONTNEED)
            self._pages = None
