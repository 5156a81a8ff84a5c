"""Rows of states: a step reads what its length says, and nothing that was written after it."""

from contextlib import suppress

import numpy as np
import pytest
from host_cuda import HostRuntime

from runtime.cache.cuda_device import CudaDevice
from runtime.cache.cuda_states import CudaStates
from runtime.cache.pages import PAGE, pages_supported
from runtime.cache.recurrent import RecurrentStateCache, state_slots_of
from runtime.cache.state_memory import HostStates, StateTensor
from runtime.errors import ExecutionError

TENSORS = [StateTensor("conv", (3, 2)), StateTensor("matrix", (40, 5, 10))]
ROWS = 3


@pytest.fixture(params=["pages", "no pages"])
def slots(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> RecurrentStateCache:
    if request.param == "no pages":
        monkeypatch.setattr("runtime.cache.state_memory.pages_supported", lambda: False)
    return RecurrentStateCache(HostStates(TENSORS, state_slots_of(ROWS)), ROWS)


def step(
    slots: RecurrentStateCache, first: int, pasts: list[int], counts: list[int], intermediate: bool = False
) -> None:
    """A layer that adds the tokens it sees, so that each state says how many those are."""
    with slots.advance(first, pasts, counts, intermediate=intermediate) as (source, target):
        for place, count in enumerate(counts):
            slots.memory.write(target + place, [part + count for part in slots.memory.read(source + place)])


def seen(slots: RecurrentStateCache, slot: int, length: int) -> list[float]:
    return sorted({float(value) for part in slots.read(slot, length) for value in part.ravel()})


def test_steps_read_where_they_are_told_to_go_on(slots: RecurrentStateCache) -> None:
    step(slots, 1, [0], [5])
    step(slots, 1, [5], [2])
    step(slots, 1, [5], [3])  # the step to 7 was not committed
    assert (seen(slots, 1, 5), seen(slots, 1, 8)) == ([5], [8])
    with pytest.raises(ExecutionError, match=r"Slot 1 cannot continue behind 7 tokens: .* known behind \[5, 8\]"):
        slots.read(1, 7)


def test_a_step_that_fails_changes_nothing(slots: RecurrentStateCache) -> None:
    step(slots, 0, [0], [4])
    with pytest.raises(TypeError):
        step(slots, 0, [4], [None])  # type: ignore[list-item]
    with suppress(RuntimeError), slots.advance(0, [4], [1]) as (_, target):
        slots.memory.write(target, [np.full_like(part, np.nan) for part in slots.memory.read(target)])
        raise RuntimeError
    step(slots, 0, [4], [1])
    assert (seen(slots, 0, 4), seen(slots, 0, 5)) == ([4], [5])
    with suppress(RuntimeError), slots.advance(0, [5], [1]):
        raise RuntimeError
    with pytest.raises(ExecutionError, match=r"known behind \[5\]"):  # 4 was being written over
        slots.read(0, 4)


def test_rows_that_stand_apart_are_brought_together(slots: RecurrentStateCache) -> None:
    for slot, chunks in enumerate([[3], [2, 4], [1, 1, 1]]):
        past = 0
        for chunk in chunks:
            step(slots, slot, [past], [chunk])
            past += chunk
    step(slots, 0, [3, 6, 3], [1, 1, 1])
    step(slots, 0, [3, 6, 3], [1, 1, 1])  # and again
    assert [seen(slots, slot, length) for slot, length in enumerate([4, 7, 4])] == [[4], [7], [4]]


def test_a_chunk_of_two_steps_can_be_repeated(slots: RecurrentStateCache) -> None:
    step(slots, 0, [0], [6])
    for _ in range(2):
        step(slots, 0, [6], [5], intermediate=True)
        step(slots, 0, [11], [4])
    assert (seen(slots, 0, 6), seen(slots, 0, 15)) == ([6], [15])


def test_what_is_kept_survives_the_steps_behind_it_and_moves_along(slots: RecurrentStateCache) -> None:
    step(slots, 0, [0], [8])
    assert slots.keep(0, 8)
    assert not slots.keep(0, 7)
    for past in range(8, 12):
        step(slots, 0, [past], [1])
    slots.copy_slot(0, 2, 12)
    slots.copy_slot(0, 1, 8)
    assert [seen(slots, 2, length) for length in (8, 12)] == [[8], [12]]
    step(slots, 1, [8], [5])
    assert (seen(slots, 1, 13), seen(slots, 0, 12)) == ([13], [12])


def test_a_row_that_starts_anew_knows_nothing_of_the_one_before(slots: RecurrentStateCache) -> None:
    step(slots, 0, [0], [8])
    slots.keep(0, 8)
    step(slots, 0, [0], [3])
    assert seen(slots, 0, 3) == [3]
    with pytest.raises(ExecutionError, match="behind 8 tokens"):
        slots.read(0, 8)


def test_release_forgets_what_lies_behind(slots: RecurrentStateCache) -> None:
    step(slots, 1, [0], [4])
    slots.keep(1, 4)
    step(slots, 1, [4], [4])
    slots.free_slot(1, 4)
    assert seen(slots, 1, 4) == [4]
    for length, keep in ((8, 4), (4, 0)):
        slots.free_slot(1, keep)
        with pytest.raises(ExecutionError, match=f"behind {length} tokens"):
            slots.read(1, length)
    step(slots, 1, [0], [2])
    assert seen(slots, 1, 2) == [2]


@pytest.mark.skipif(not pages_supported(), reason="this system takes no pages back")
def test_discarding_gives_whole_pages_back() -> None:
    memory = HostStates(TENSORS, 5)
    for place in range(5):
        memory.write(place, [np.ones(tensor.sizes, np.float32) for tensor in TENSORS])
    memory.discard(2)
    matrices = memory.arrays[1].reshape(5, -1)
    assert not matrices[2, PAGE // 4 : -PAGE // 4].any()
    assert all(matrices[place].all() for place in (0, 1, 3, 4))


def test_a_block_read_and_written_elsewhere_continues(slots: RecurrentStateCache) -> None:
    step(slots, 0, [0], [64])
    slots.write(2, 64, slots.read(0, 64))
    step(slots, 2, [64], [6])
    assert (seen(slots, 2, 64), seen(slots, 2, 70)) == ([64], [70])


def test_places_on_a_gpu_do_what_places_on_the_host_do() -> None:
    places = state_slots_of(ROWS)
    memories = (HostStates(TENSORS, places), CudaStates(TENSORS, places, CudaDevice(HostRuntime())))
    both = [RecurrentStateCache(memory, ROWS) for memory in memories]
    for slots in both:
        step(slots, 0, [0], [5])
        slots.copy_slot(0, 2, 5)
        step(slots, 2, [5], [1])
        slots.keep(2, 6)
        step(slots, 1, [0], [6])
    for slot, length in ((0, 5), (1, 6), (2, 6)):
        assert all(np.array_equal(*parts) for parts in zip(*(slots.read(slot, length) for slots in both), strict=True))
    assert both[1].memory.pointer(1, 2) - both[1].memory.pointer(1, 0) == 2 * TENSORS[1].nbytes
