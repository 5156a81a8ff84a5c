"""Rows of states: a step reads what its length says, and nothing that was written after it."""

from contextlib import suppress

import numpy as np
import pytest

from runtime.cache.cuda_states import CudaStates
from runtime.cache.pages import PAGE, pages_supported
from runtime.cache.recurrent import StateRows, state_places
from runtime.cache.state_memory import HostStates, StateTensor
from runtime.errors import ExecutionError

TENSORS = [StateTensor("conv", (3, 2)), StateTensor("matrix", (40, 5, 10))]
ROWS = 3


@pytest.fixture(params=["pages", "no pages"])
def rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> StateRows:
    if request.param == "no pages":
        monkeypatch.setattr("runtime.cache.state_memory.pages_supported", lambda: False)
    return StateRows(HostStates(TENSORS, state_places(ROWS)), ROWS)


def step(rows: StateRows, first: int, pasts: list[int], counts: list[int], passing: bool = False) -> None:
    """A layer that adds the tokens it sees, so that each state says how many those are."""
    with rows.advance(first, pasts, counts, passing=passing) as (source, target):
        for place, count in enumerate(counts):
            rows.memory.write(target + place, [part + count for part in rows.memory.read(source + place)])


def seen(rows: StateRows, row: int, length: int) -> list[float]:
    return sorted({float(value) for part in rows.read(row, length) for value in part.ravel()})


def test_steps_read_where_they_are_told_to_go_on(rows: StateRows) -> None:
    step(rows, 1, [0], [5])
    step(rows, 1, [5], [2])
    step(rows, 1, [5], [3])  # the step to 7 was not committed
    assert (seen(rows, 1, 5), seen(rows, 1, 8)) == ([5], [8])
    with pytest.raises(ExecutionError, match=r"Row 1 cannot continue behind 7 tokens: .* known behind \[5, 8\]"):
        rows.read(1, 7)


def test_a_step_that_fails_changes_nothing(rows: StateRows) -> None:
    step(rows, 0, [0], [4])
    with pytest.raises(TypeError):
        step(rows, 0, [4], [None])  # type: ignore[list-item]
    with suppress(RuntimeError), rows.advance(0, [4], [1]) as (_, target):
        rows.memory.write(target, [np.full_like(part, np.nan) for part in rows.memory.read(target)])
        raise RuntimeError
    step(rows, 0, [4], [1])
    assert (seen(rows, 0, 4), seen(rows, 0, 5)) == ([4], [5])
    with suppress(RuntimeError), rows.advance(0, [5], [1]):
        raise RuntimeError
    with pytest.raises(ExecutionError, match=r"known behind \[5\]"):  # 4 was being written over
        rows.read(0, 4)


def test_rows_that_stand_apart_are_brought_together(rows: StateRows) -> None:
    for row, chunks in enumerate([[3], [2, 4], [1, 1, 1]]):
        past = 0
        for chunk in chunks:
            step(rows, row, [past], [chunk])
            past += chunk
    step(rows, 0, [3, 6, 3], [1, 1, 1])
    step(rows, 0, [3, 6, 3], [1, 1, 1])  # and again
    assert [seen(rows, row, length) for row, length in enumerate([4, 7, 4])] == [[4], [7], [4]]


def test_a_chunk_of_two_steps_can_be_repeated(rows: StateRows) -> None:
    step(rows, 0, [0], [6])
    for _ in range(2):
        step(rows, 0, [6], [5], passing=True)
        step(rows, 0, [11], [4])
    assert (seen(rows, 0, 6), seen(rows, 0, 15)) == ([6], [15])


def test_what_is_kept_survives_the_steps_behind_it_and_moves_along(rows: StateRows) -> None:
    step(rows, 0, [0], [8])
    assert rows.keep(0, 8)
    assert not rows.keep(0, 7)
    for past in range(8, 12):
        step(rows, 0, [past], [1])
    rows.move(0, 2, 12)
    rows.move(0, 1, 8)
    assert [seen(rows, 2, length) for length in (8, 12)] == [[8], [12]]
    step(rows, 1, [8], [5])
    assert (seen(rows, 1, 13), seen(rows, 0, 12)) == ([13], [12])


def test_a_row_that_starts_anew_knows_nothing_of_the_one_before(rows: StateRows) -> None:
    step(rows, 0, [0], [8])
    rows.keep(0, 8)
    step(rows, 0, [0], [3])
    assert seen(rows, 0, 3) == [3]
    with pytest.raises(ExecutionError, match="behind 8 tokens"):
        rows.read(0, 8)


def test_release_forgets_what_lies_behind(rows: StateRows) -> None:
    step(rows, 1, [0], [4])
    rows.keep(1, 4)
    step(rows, 1, [4], [4])
    rows.release(1, 4)
    assert seen(rows, 1, 4) == [4]
    for length, keep in ((8, 4), (4, 0)):
        rows.release(1, keep)
        with pytest.raises(ExecutionError, match=f"behind {length} tokens"):
            rows.read(1, length)
    step(rows, 1, [0], [2])
    assert seen(rows, 1, 2) == [2]


@pytest.mark.skipif(not pages_supported(), reason="this system takes no pages back")
def test_discarding_gives_whole_pages_back() -> None:
    memory = HostStates(TENSORS, 5)
    for place in range(5):
        memory.write(place, [np.ones(tensor.sizes, np.float32) for tensor in TENSORS])
    memory.discard(2)
    matrices = memory.arrays[1].reshape(5, -1)
    assert not matrices[2, PAGE // 4 : -PAGE // 4].any()
    assert all(matrices[place].all() for place in (0, 1, 3, 4))


def test_a_block_read_and_written_elsewhere_continues(rows: StateRows) -> None:
    step(rows, 0, [0], [64])
    rows.write(2, 64, rows.read(0, 64))
    step(rows, 2, [64], [6])
    assert (seen(rows, 2, 64), seen(rows, 2, 70)) == ([64], [70])


class HostRuntime:
    """cudaMemcpy2D of single lines, on host memory."""

    def cudaMemcpy2D(self, target: int, _: int, source: int, __: int, width: int, height: int, kind: int) -> int:  # noqa: N802
        import ctypes

        assert (height, kind in (1, 2, 3)) == (1, True)
        ctypes.memmove(target, source, width)
        return 0

    def cudaDeviceSynchronize(self) -> int:  # noqa: N802
        return 0


def test_places_on_a_gpu_do_what_places_on_the_host_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.cache.cuda_copies.load_cuda_runtime", HostRuntime)
    monkeypatch.setattr(CudaStates, "device", "cpu")
    both = [StateRows(memory(TENSORS, state_places(ROWS)), ROWS) for memory in (HostStates, CudaStates)]
    for rows in both:
        step(rows, 0, [0], [5])
        rows.move(0, 2, 5)
        step(rows, 2, [5], [1])
        rows.keep(2, 6)
        step(rows, 1, [0], [6])
    for row, length in ((0, 5), (1, 6), (2, 6)):
        assert all(np.array_equal(*parts) for parts in zip(*(rows.read(row, length) for rows in both), strict=True))
    assert both[1].memory.pointer(1, 2) - both[1].memory.pointer(1, 0) == 2 * TENSORS[1].nbytes
