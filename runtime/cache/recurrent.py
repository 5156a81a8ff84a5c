"""Where each slot's state lies, for layers that keep one instead of keys and values: recurrences and convolutions.

A state has a fixed size, has seen every token before it, and cannot go back. So a slot has three places for it:

    two that steps alternate between: a step reads the state before it and writes the state after it
    one for a state that is kept: where another sequence may continue

A place is known by how many tokens its state has seen, and every step says behind how many it continues. A sequence's
length thus stays the only commit point: a step that was not committed is repeated from the state before it, which is
still there, and no token ever enters a state twice.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ..bundle.kv_layout import STATE_COPIES
from ..errors import ExecutionError
from .host import Array
from .state_memory import StateMemory

_KEPT = STATE_COPIES - 1  # the third of a slot's places
_UNKNOWN = -1  # what a place holds is of no use


def state_slots_of(slots: int) -> int:
    """Places for `slots` slots: three for each, and one for a step between the two halves of a chunk."""
    return STATE_COPIES * slots + 1


class RecurrentStateCache:
    """The places of all slots. Place `copy * slots + slot` is a copy of a slot's state; the last one is anybody's.

    Args:
        memory: of `state_slots_of(slots)` places.
        slots: how many slots there are.
    """

    def __init__(self, memory: StateMemory, slots: int) -> None:
        self.memory = memory
        self._slots = slots
        self._between = STATE_COPIES * slots
        self._between_row = 0  # whose state is there
        self._seen = [_UNKNOWN] * state_slots_of(slots)  # tokens that each place's state has seen

    @contextmanager
    def advance(
        self, first: int, pasts: Sequence[int], counts: Sequence[int], *, intermediate: bool = False
    ) -> Iterator[tuple[int, int]]:
        """`with` this around a step of slots `first …` that puts `counts[i]` tokens behind `pasts[i]`.

        Yields the places that the step reads and writes, each the first of a run of places. Only when the step returns
        do the states that it wrote count. If it is `passing`, the next step of its only slot continues behind it, and
        the states before both are still there afterwards.

        Raises:
            ExecutionError: the state behind some slot's past is not known.
        """
        if not self.memory.tensors:
            yield 0, 0
            return
        slots = range(first, first + len(pasts))
        state_slots = [self._find(slot, past) for slot, past in zip(slots, pasts, strict=True)]
        source, target = (
            self._one_slot(first, state_slots[0], intermediate)
            if len(state_slots) == 1
            else self._many(first, state_slots)
        )
        for index, (slot, past) in enumerate(zip(slots, pasts, strict=True)):
            self._forget(slot, past)
            self._seen[target + index] = _UNKNOWN
        yield source, target
        for index, (past, count) in enumerate(zip(pasts, counts, strict=True)):
            self._seen[target + index] = past + count

    def keep(self, slot: int, length: int) -> bool:
        """Keep the state behind the first `length` tokens, in place of what was kept before; False: it is not known."""
        known = [state_slot for state_slot in self._state_slots(slot) if self._seen[state_slot] == length]
        if known:
            self._copy(known[0], self._state_slot(_KEPT, slot))
        return bool(known)

    def copy_slot(self, source: int, target: int, length: int) -> None:
        """Copy the state behind the first `length` tokens of one slot to another slot, and what is kept before it."""
        if source == target or not self.memory.tensors:
            return
        state_slot = self._find(source, length)
        self._forget(target, _UNKNOWN)
        self._copy(state_slot, self._state_slot(state_slot // self._slots % STATE_COPIES, target))
        kept = self._state_slot(_KEPT, source)
        if _UNKNOWN < self._seen[kept] <= length:
            self._copy(kept, self._state_slot(_KEPT, target))

    def free_slot(self, slot: int, keep: int) -> None:
        """Forget the slot's states beyond its first `keep` tokens; with none to keep, give their memory back."""
        self._forget(slot, keep or _UNKNOWN)
        if not keep:
            for copy in range(STATE_COPIES):
                self.memory.discard(self._state_slot(copy, slot))

    def read(self, slot: int, length: int) -> list[Array]:
        """Copies of the state behind the slot's first `length` tokens."""
        return self.memory.read(self._find(slot, length))

    def write(self, slot: int, length: int, block: Sequence[Array]) -> None:
        """Keep what `read` returned as the slot's only state, behind its first `length` tokens."""
        self._forget(slot, _UNKNOWN)
        self.memory.write(self._state_slot(_KEPT, slot), block)
        self._seen[self._state_slot(_KEPT, slot)] = length

    def _state_slot(self, copy: int, slot: int) -> int:
        return copy * self._slots + slot

    def _state_slots(self, slot: int) -> list[int]:
        shared = [self._between] if self._between_row == slot else []
        return [*range(slot, self._between, self._slots), *shared]

    def _find(self, slot: int, length: int) -> int:
        """The place whose state has seen the slot's first `length` tokens; the state behind none is made of zeros."""
        for state_slot in self._state_slots(slot):
            if self._seen[state_slot] == length:
                return state_slot
        if length:
            known = sorted({self._seen[state_slot] for state_slot in self._state_slots(slot)} - {_UNKNOWN})
            raise ExecutionError(
                f"Slot {slot} cannot continue behind {length} tokens: its layers keep states, known behind {known}."
            )
        self._forget(slot, _UNKNOWN)
        self.memory.clear(slot)
        self._seen[slot] = 0
        return slot

    def _one_slot(self, slot: int, source: int, intermediate: bool) -> tuple[int, int]:
        """It reads its state wherever that is, and writes over the older of the two that steps alternate between."""
        if intermediate:
            self._between_row, self._seen[self._between] = slot, _UNKNOWN
            return source, self._between
        changing = [
            state_slot for state_slot in (self._state_slot(0, slot), self._state_slot(1, slot)) if state_slot != source
        ]
        return source, min(changing, key=self._seen.__getitem__)

    def _many(self, first: int, state_slots: list[int]) -> tuple[int, int]:
        """All read the same copy, the one where most states are, after the others were copied there."""
        copy = int(sum(state_slot // self._slots == 1 for state_slot in state_slots) * 2 > len(state_slots))
        for slot, state_slot in enumerate(state_slots, first):
            self._copy(state_slot, self._state_slot(copy, slot))
        return self._state_slot(copy, first), self._state_slot(1 - copy, first)

    def _copy(self, source: int, target: int) -> None:
        if source != target:
            self._seen[target] = _UNKNOWN
            self.memory.copy(source, target)
            self._seen[target] = self._seen[source]

    def _forget(self, slot: int, length: int) -> None:
        """States beyond the first `length` tokens are not, or no more, of the slot's sequence."""
        for state_slot in self._state_slots(slot):
            if self._seen[state_slot] > length:
                self._seen[state_slot] = _UNKNOWN
