"""Rows of cache memory, whatever they are made of, and the pool that counts them."""

import mmap
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.cache.blocks import BlockPool
from runtime.cache.host import CacheTensor, GrowingSlots, PagedSlots, next_bucket, paged_capacity


def resident_memory() -> int:
    """Bytes of this process that are in RAM now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


FLOAT = CacheTensor("key", kv_heads=3, head_width=64, dtype=np.dtype(np.float32))
BYTES = CacheTensor("value", kv_heads=2, head_width=32, dtype=np.dtype(np.int8))
WINDOWED = CacheTensor("key", kv_heads=2, head_width=64, dtype=np.dtype(np.float32), window=40)

kinds = pytest.mark.parametrize("kind", [PagedSlots, GrowingSlots])
Kind = type[PagedSlots] | type[GrowingSlots]


def fill(slots: PagedSlots | GrowingSlots, slot: int, length: int) -> list[np.ndarray]:
    block = [
        (np.arange(t.kv_heads * length * t.head_width) % 97).reshape(t.kv_heads, length, -1).astype(t.dtype)
        for t in (FLOAT, BYTES)
    ]
    slots.write(slot, 0, block)
    return block


@kinds
def test_what_is_written_is_read_and_moves(kind: Kind) -> None:
    slots = kind([FLOAT, BYTES], 4, 600)
    block = fill(slots, 1, 500)
    slots.copy_slot(1, 3, 500)
    assert all(np.array_equal(got, part) for got, part in zip(slots.read(3, 0, 500), block, strict=True))
    assert np.array_equal(slots.read(1, 100, 120)[0], block[0][:, 100:120])


@kinds
def test_pointer_and_shape_describe_the_row(kind: Kind) -> None:
    slots = kind([FLOAT, BYTES], 3, 100)
    for index in range(2):
        assert slots.pointer(index, 2) == slots.arrays[index][2:].ctypes.data
        assert slots.shape(index, 2) == slots.arrays[index][:2].shape


def test_growing_rows_keep_their_contents_and_say_that_they_moved() -> None:
    slots = GrowingSlots([FLOAT, BYTES], 2, 4000)
    block = fill(slots, 0, 200)
    generation = slots.generation
    slots.reserve(600)
    assert slots.generation == generation + 1
    assert np.array_equal(slots.read(0, 0, 200)[0], block[0])


def test_growing_stops_at_the_limit() -> None:
    assert [next_bucket(length, 4000) for length in (1, 256, 257, 2600, 3999, 4000)] == [
        256,
        512,
        512,
        4000,
        4000,
        4000,
    ]


@given(st.integers(1, 10_000), st.sampled_from([8, 16, 32, 64, 80, 128]), st.sampled_from(["float32", "int8"]))
def test_paged_heads_are_an_odd_number_of_whole_pages(capacity: int, width: int, dtype: str) -> None:
    tensor = CacheTensor("key", 1, width, np.dtype(dtype))
    size = paged_capacity([tensor], capacity) * width * tensor.dtype.itemsize
    assert size % mmap.PAGESIZE == 0
    assert width == 80 or size // mmap.PAGESIZE % 2  # 80 wide, pages come in groups of five
    assert paged_capacity([tensor], capacity) >= capacity


def test_reserving_costs_nothing_and_release_gives_pages_back() -> None:
    before = resident_memory()
    slots = PagedSlots([FLOAT] * 8, 16, 8192)  # 768 MiB of address space
    reserved = resident_memory()
    for array in slots.arrays:
        array[0, :, :1000] = 1
    written = resident_memory()
    slots.free_slot(0, 0)
    assert reserved - before < 2 << 20
    assert written - reserved > 5 << 20
    assert resident_memory() - reserved < 1 << 20


def test_windowed_layers_hold_only_their_window() -> None:
    slots = PagedSlots([WINDOWED, FLOAT], 1, 1000)
    for array in slots.arrays:
        array[:] = 1
    for length in range(400):
        slots.evict_window(0, length, length + 1)
    windowed, full = slots.arrays
    assert windowed[0, :, 360:].all()  # the last 40 positions, and everything not reached yet
    assert not windowed[0, :, :352].any()  # whole pages of 16 tokens
    assert full.all()


@given(st.lists(st.integers(0, 12), max_size=30))
def test_a_pool_never_gives_more_than_it_has(wishes: list[int]) -> None:
    pool = BlockPool(20, 16)
    taken = [wish for wish in wishes if pool.take(wish)]
    assert pool.free == 20 - sum(taken) >= 0
    for blocks in taken:
        pool.give(blocks)
    assert pool.free == 20


def test_blocks_round_up() -> None:
    pool = BlockPool.of_bytes(100_000, bytes_per_token=100, block_tokens=16)
    assert (pool.total, pool.tokens) == (62, 992)
    assert [pool.blocks(tokens) for tokens in (0, 1, 16, 17)] == [0, 1, 1, 2]
