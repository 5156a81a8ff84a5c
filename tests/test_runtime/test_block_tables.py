"""Block tables: over random schedules, attention through them is attention over each slot's own tokens."""

import numpy as np
import pytest
from paged_reference import paged_attention

from runtime.cache.block_tables import BlockTables
from runtime.errors import DeviceMemoryError

BLOCK, SLOTS, LONGEST, WIDTH = 4, 4, 40, 4
RNG = np.random.default_rng(0)
KEYS, VALUES, PLACES = (RNG.standard_normal((50, WIDTH)).astype(np.float32) for _ in range(3))


class Machine:
    """A random schedule, as an executor would be asked to run it, beside the tokens that each slot should hold."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.tables = BlockTables(SLOTS, SLOTS * LONGEST // BLOCK, BLOCK, LONGEST)
        self.caches = tuple(np.full((SLOTS * LONGEST // BLOCK, BLOCK, 1, WIDTH), np.nan, np.float32) for _ in range(2))
        self.tokens: list[list[int]] = [[] for _ in range(SLOTS)]

    def step(self) -> None:
        getattr(self, str(self.rng.choice(["chunks", "chunks", "decode", "share", "keep"])))()
        held = {block for slot in range(SLOTS) for block in self.tables.held(slot)}
        assert self.tables.free + len(held) == len(self.caches[0])

    def chunks(self) -> None:
        slots = self.rng.permutation(SLOTS)[: self.rng.integers(1, SLOTS)]
        self._run(slots.tolist(), [int(self.rng.integers(1, 9)) for _ in slots])

    def decode(self) -> None:
        count = int(self.rng.integers(1, SLOTS + 1))
        self._run(list(range(count)), [1] * count)

    def share(self) -> None:
        source, target = self.rng.integers(0, SLOTS, 2).tolist()
        length = int(self.rng.integers(0, len(self.tokens[source]) + 1))
        self.tables.share(source, target, length)
        self.tokens[target] = self.tokens[source][:length] if source != target else self.tokens[target]

    def keep(self) -> None:
        slot = int(self.rng.integers(0, SLOTS))
        length = int(self.rng.integers(0, len(self.tokens[slot]) + 1))
        self.tables.keep(slot, length)
        self.tokens[slot] = self.tokens[slot][:length]

    def _run(self, slots: list[int], counts: list[int]) -> None:
        """Put new tokens into slots, some of them behind a beginning of what is there, and compare each output."""
        work = [(slot, count) for slot, count in zip(slots, counts, strict=True)]
        work = [(slot, count) for slot, count in work if len(self.tokens[slot]) + count <= LONGEST]
        ids, pasts = [], []
        for slot, count in work:
            pasts.append(max(0, len(self.tokens[slot]) - int(self.rng.integers(0, 3))))  # a draft was rejected
            ids.append(self.rng.integers(0, 50, count).tolist())
            for source, target in self.tables.write(slot, pasts[-1], pasts[-1] + count):
                for cache in self.caches:
                    cache[target] = cache[source]
            self.tokens[slot] = self.tokens[slot][: pasts[-1]] + ids[-1]
        if not work:
            return
        flat = np.concatenate(ids)
        positions = np.concatenate([p + np.arange(len(i)) for p, i in zip(pasts, ids, strict=True)])
        query, key, value = (part[:, None] for part in self._heads(flat, positions))
        cumulative = np.cumsum([0, *map(len, ids)])
        rows = self.tables.rows[[slot for slot, _ in work]]
        got = paged_attention(query, key, value, self.caches, cumulative, pasts, rows)[:, 0]
        np.testing.assert_allclose(
            got, np.concatenate([self._dense(*each) for each in zip(work, pasts, strict=True)]), 1e-4, 1e-5
        )

    def _heads(self, ids: np.ndarray, positions: np.ndarray) -> list[np.ndarray]:
        return [KEYS[ids] - PLACES[positions], KEYS[ids] + PLACES[positions], VALUES[ids] * PLACES[positions]]

    def _dense(self, work: tuple[int, int], past: int) -> np.ndarray:
        ids = np.array(self.tokens[work[0]])
        query, key, value = self._heads(ids, np.arange(len(ids)))
        scores = np.where(np.tri(len(ids), dtype=bool), query @ key.T, -np.inf)
        weights = np.exp(scores - scores.max(1, keepdims=True))
        return (weights / weights.sum(1, keepdims=True) @ value)[past:]


@pytest.mark.parametrize("part", range(10))
def test_random_schedules_compute_what_rows_of_their_own_would(part: int) -> None:
    for seed in range(100 * part, 100 * part + 100):
        machine = Machine(seed)
        for _ in range(12):
            machine.step()


def test_a_shared_block_is_copied_when_it_is_written_and_not_before() -> None:
    tables = BlockTables(3, 6, BLOCK, 16)
    assert tables.write(0, 0, 10) == []
    tables.share(0, 1, 10)
    assert (tables.held(1), tables.free) == (tables.held(0), 3)
    last = tables.held(0)[2]
    assert tables.write(1, 10, 11) == [(last, tables.held(1)[2])]
    assert tables.held(0)[2] == last
    assert tables.held(1)[:2] == tables.held(0)[:2]


def test_a_slot_that_moves_copies_nothing() -> None:
    tables = BlockTables(2, 4, BLOCK, 16)
    tables.write(1, 0, 6)
    tables.share(1, 0, 6)
    tables.keep(1, 0)
    assert tables.write(0, 6, 7) == []
    assert tables.free == 2


def test_too_few_blocks_change_nothing() -> None:
    tables = BlockTables(2, 3, BLOCK, 16)
    tables.write(0, 0, 8)
    before = tables.held(0)
    with pytest.raises(DeviceMemoryError, match="2 more blocks"):
        tables.write(1, 0, 8)
    assert (tables.held(0), tables.held(1), tables.free) == (before, [], 1)
