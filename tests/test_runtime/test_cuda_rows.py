"""The GPU's rows over a stand-in for the CUDA runtime that copies host memory: every address and pitch is checked."""

import ctypes

import numpy as np
import pytest

from runtime.cache.cuda import CudaSlots
from runtime.cache.host import CacheTensor, PagedSlots
from runtime.errors import ExecutionError

TENSORS = [
    CacheTensor("key", kv_heads=3, head_width=16, dtype=np.dtype(np.float16)),
    CacheTensor("value", kv_heads=2, head_width=8, dtype=np.dtype(np.int8)),
]


class HostRuntime:
    """cudaMemcpy2D on host memory."""

    status = 0

    def cudaMemcpy2D(  # noqa: N802
        self, target: int, target_pitch: int, source: int, source_pitch: int, width: int, height: int, kind: int
    ) -> int:
        assert width <= min(target_pitch, source_pitch)
        for line in range(height):
            ctypes.memmove(target + line * target_pitch, source + line * source_pitch, width)
        return self.status

    def cudaDeviceSynchronize(self) -> int:  # noqa: N802
        return 0


@pytest.fixture
def slots(monkeypatch: pytest.MonkeyPatch) -> CudaSlots:
    monkeypatch.setattr("runtime.cache.cuda_copies.load_cuda_runtime", HostRuntime)
    monkeypatch.setattr(CudaSlots, "device", "cpu")
    return CudaSlots(TENSORS, 4, 4000)


def block(length: int) -> list[np.ndarray]:
    rng = np.random.default_rng(length)
    return [rng.integers(-9, 9, (t.kv_heads, length, t.head_width)).astype(t.dtype) for t in TENSORS]


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


def test_a_failed_copy_is_our_error(slots: CudaSlots, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostRuntime, "status", 2)
    with pytest.raises(ExecutionError, match="CUDA error 2"):
        slots.copy_slot(0, 1, 5)
