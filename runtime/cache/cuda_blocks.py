"""Blocks of the cache in GPU memory: all of them allocated once, at addresses that never change."""

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from .block_tables import Copy
from .cuda_device import ON_DEVICE, TO_DEVICE, TO_HOST, CudaDevice
from .host import Array, CacheTensor


class BlockMemory(Protocol):
    """Where the blocks of each cache tensor lie: `[blocks, block_tokens, kv_heads, head_width]`."""

    device: str

    def pointer(self, tensor: int) -> int:
        """Address of a cache tensor."""

    def shape(self, tensor: int) -> tuple[int, ...]:
        """Its shape."""

    def copy(self, copies: Sequence[Copy]) -> None:
        """Copy blocks of every tensor over others."""

    def read(self, blocks: Sequence[int], start: int, stop: int) -> list[Array]:
        """Positions `[start, stop)` of the sequence in these blocks: `[kv_heads, n, head_width]` per tensor."""

    def write(self, blocks: Sequence[int], start: int, block: Sequence[Array]) -> None:
        """Put back what `read` returned, at `start`."""

    def close(self) -> None:
        """Drop the memory."""


class CudaBlocks:
    """BlockMemory on a GPU.

    Args:
        tensors: all keys, then all values, layer by layer.
        blocks: how many blocks there are.
        block_tokens: tokens of one.
        device: where they live.

    Raises:
        DeviceMemoryError: the device has less; nothing stays allocated.
    """

    device = "cuda"

    def __init__(self, tensors: Sequence[CacheTensor], blocks: int, block_tokens: int, device: CudaDevice) -> None:
        self._tensors, self._blocks, self._block_tokens, self._gpu = tuple(tensors), blocks, block_tokens, device
        self._addresses: list[int] = []
        try:
            for tensor in self._tensors:
                self._addresses.append(device.allocate(blocks * block_tokens * tensor.token_bytes))
        except BaseException:
            self.close()
            raise

    @property
    def allocated(self) -> int:
        """Bytes of device memory that the tensors have."""
        return sum(self._blocks * self._block_tokens * t.token_bytes for t in self._tensors if self._addresses)

    def pointer(self, tensor: int) -> int:
        """Device address of a cache tensor."""
        return self._addresses[tensor]

    def shape(self, tensor: int) -> tuple[int, ...]:
        """`[blocks, block_tokens, kv_heads, head_width]`."""
        about = self._tensors[tensor]
        return (self._blocks, self._block_tokens, about.kv_heads, about.head_width)

    def copy(self, copies: Sequence[Copy]) -> None:
        """Copy blocks of every tensor, on the stream."""
        for tensor, address in zip(self._tensors, self._addresses, strict=True):
            size = self._block_tokens * tensor.token_bytes
            for source, target in copies:
                self._gpu.copy_line(address + target * size, address + source * size, size, ON_DEVICE)

    def read(self, blocks: Sequence[int], start: int, stop: int) -> list[Array]:
        """Host copies, one array per tensor."""
        parts = [np.empty((stop - start, t.kv_heads, t.head_width), t.dtype) for t in self._tensors]
        for tensor, address, part in zip(self._tensors, self._addresses, parts, strict=True):
            for place, first, count in pieces(blocks, start, stop, self._block_tokens):
                source = address + place * tensor.token_bytes
                self._gpu.copy_line(part[first:].ctypes.data, source, count * tensor.token_bytes, TO_HOST)
        self._gpu.finish()
        return [part.swapaxes(0, 1) for part in parts]

    def write(self, blocks: Sequence[int], start: int, block: Sequence[Array]) -> None:
        """Put a host block back at `start`."""
        parts = [np.ascontiguousarray(part.swapaxes(0, 1)) for part in block]
        for tensor, address, part in zip(self._tensors, self._addresses, parts, strict=True):
            for place, first, count in pieces(blocks, start, start + len(part), self._block_tokens):
                target = address + place * tensor.token_bytes
                self._gpu.copy_line(target, part[first:].ctypes.data, count * tensor.token_bytes, TO_DEVICE)
        self._gpu.finish()  # before `parts` are gone

    def close(self) -> None:
        """Free the device memory."""
        for address in self._addresses:
            self._gpu.release(address)
        self._addresses = []


def pieces(blocks: Sequence[int], start: int, stop: int, block_tokens: int) -> Iterator[tuple[int, int, int]]:
    """(place in the tensor, in tokens; first token, counted from `start`; how many tokens) of each block."""
    position = start
    while position < stop:
        end = min(stop, (position // block_tokens + 1) * block_tokens)
        place = blocks[position // block_tokens] * block_tokens + position % block_tokens
        yield place, position - start, end - position
        position = end
