"""The GPU's rows over a stand-in for the CUDA runtime that copies host memory: every address and pitch is checked."""

import numpy as np
import pytest
from host_cuda import HostRuntime

from runtime.cache.cuda import CudaSlots
from runtime.cache.cuda_device import CudaDevice
from runtime.cache.host import CacheTensor, PagedSlots
from runtime.errors import DeviceLostError, DeviceMemoryError

TENSORS = [
    CacheTensor("key.0", kv_heads=3, head_width=16, dtype=np.dtype(np.float16)),
    CacheTensor("key.1", kv_heads=1, head_width=16, dtype=np.dtype(np.uint16)),  # bfloat16, as bits
    CacheTensor("value.0", kv_heads=2, head_width=8, dtype=np.dtype(np.int8)),
    CacheTensor("value.1", kv_heads=1, head_width=16, dtype=np.dtype(np.uint16)),
]


@pytest.fixture
def runtime() -> HostRuntime:
    return HostRuntime()


@pytest.fixture
def slots(runtime: HostRuntime) -> CudaSlots:
    return CudaSlots(TENSORS, 4, 4000, CudaDevice(runtime))


def block(length: int) -> list[np.ndarray]:
    rng = np.random.default_rng(length)
    return [rng.integers(1, 9, (t.kv_heads, length, t.head_width)).astype(t.dtype) for t in TENSORS]


def equal(left: list[np.ndarray], right: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


def test_it_does_what_host_rows_do(slots: CudaSlots) -> None:
    host = PagedSlots(TENSORS, 4, 4000)
    for memory in (slots, host):
        memory.write(1, 0, block(300))
        memory.write(2, 0, block(90))
        memory.copy_slot(2, 0, 90)
        memory.write(0, 90, block(7))
    for slot, start, stop in ((0, 0, 97), (1, 0, 300), (1, 100, 101), (2, 0, 90)):
        assert equal(slots.read(slot, start, stop), host.read(slot, start, stop))


def test_growing_keeps_every_row_and_changes_the_addresses(slots: CudaSlots) -> None:
    for slot in range(4):
        slots.write(slot, 0, block(50 + slot))
    generation, capacity = slots.generation, slots.capacity
    slots.reserve(capacity + 1)
    assert (slots.generation, slots.capacity > capacity) == (generation + 1, True)
    assert all(equal(slots.read(slot, 0, 50 + slot), block(50 + slot)) for slot in range(4))


def test_rows_lie_one_behind_the_other(slots: CudaSlots) -> None:
    assert slots.shape(0, 2) == (2, 3, slots.capacity, 16)
    assert slots.pointer(0, 1) - slots.pointer(0, 0) == 3 * slots.capacity * 16 * 2


@pytest.mark.parametrize("allocation", [1, 2, 3, 4])
def test_a_growth_that_fails_anywhere_leaves_every_row(slots: CudaSlots, runtime: HostRuntime, allocation: int) -> None:
    for slot in range(4):
        slots.write(slot, 0, block(50 + slot))
    before, capacity, held = slots.generation, slots.capacity, len(runtime.blocks)
    runtime.fail_at = runtime.allocations + allocation
    with pytest.raises(DeviceMemoryError, match="--kv-memory"):
        slots.reserve(capacity + 1)
    assert (slots.generation > before, slots.capacity, len(runtime.blocks)) == (True, capacity, held)
    assert all(equal(slots.read(slot, 0, 50 + slot), block(50 + slot)) for slot in range(4))
    slots.reserve(capacity + 1)
    assert all(equal(slots.read(slot, 0, 50 + slot), block(50 + slot)) for slot in range(4))


def test_a_failed_copy_says_that_the_gpu_is_lost(slots: CudaSlots, runtime: HostRuntime) -> None:
    runtime.status = 700
    with pytest.raises(DeviceLostError, match="CUDA error 700"):
        slots.copy_slot(0, 1, 5)


def test_closing_gives_everything_back(slots: CudaSlots, runtime: HostRuntime) -> None:
    slots.close()
    assert runtime.blocks == {}
