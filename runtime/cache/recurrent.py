"""Where each row's state lies, for layers that keep one instead of keys and values: recurrences and convolutions.

A state has a fixed size, has seen every token before it, and cannot go back. So a row has three places for it:

    two that steps alternate between: a step reads the state before it and writes the state after it
    one for a state that is kept: where another sequence may continue

A place is known by how many tokens its state has seen, and every step says behind how many it continues. A sequence's
length thus stays the only commit point: a step that was not committed is repeated from the state before it, which is
still there, and no token ever enters a state twice.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ..errors import ExecutionError
from .host import Array
from .layout import STATE_COPIES
from .state_memory import StateMemory

_KEPT = STATE_COPIES - 1  # the third of a row's places
_UNKNOWN = -1  # what a place holds is of no use


def state_places(rows: int) -> int:
    """Places for so many rows: three of each, and one for a step between the two halves of a chunk."""
    return STATE_COPIES * rows + 1


class StateRows:
    """The places of all rows. Place `copy * rows + row` is a copy of a row's state; the last one is anybody's.

    Args:
        memory: of `state_places(rows)` places.
        rows: how many rows there are.
    """

    def __init__(self, memory: StateMemory, rows: int) -> None:
        self.memory = memory
        self._rows = rows
        self._between = STATE_COPIES * rows
        self._between_row = 0  # whose state is there
        self._seen = [_UNKNOWN] * state_places(rows)  # tokens that each place's state has seen

    @contextmanager
    def advance(
        self, first: int, pasts: Sequence[int], counts: Sequence[int], *, passing: bool = False
    ) -> Iterator[tuple[int, int]]:
        """`with` this around a step of rows `first …` that puts `counts[i]` tokens behind `pasts[i]`.

        Yields the places that the step reads and writes, each the first of a run of places. Only when the step returns
        do the states that it wrote count. If it is `passing`, the next step of its only row continues behind it, and
        the states before both are still there afterwards.

        Raises:
            ExecutionError: the state behind some row's past is not known.
        """
        if not self.memory.tensors:
            yield 0, 0
            return
        rows = range(first, first + len(pasts))
        places = [self._find(row, past) for row, past in zip(rows, pasts, strict=True)]
        source, target = self._one_row(first, places[0], passing) if len(places) == 1 else self._many(first, places)
        for index, (row, past) in enumerate(zip(rows, pasts, strict=True)):
            self._forget(row, past)
            self._seen[target + index] = _UNKNOWN
        yield source, target
        for index, (past, count) in enumerate(zip(pasts, counts, strict=True)):
            self._seen[target + index] = past + count

    def keep(self, row: int, length: int) -> bool:
        """Keep the state behind the first `length` tokens, in place of what was kept before; False: it is not known."""
        known = [place for place in self._places(row) if self._seen[place] == length]
        if known:
            self._copy(known[0], self._place(_KEPT, row))
        return bool(known)

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the state behind the first `length` tokens of one row to another row, and what is kept before it."""
        if source == target or not self.memory.tensors:
            return
        place = self._find(source, length)
        self._forget(target, _UNKNOWN)
        self._copy(place, self._place(place // self._rows % STATE_COPIES, target))
        kept = self._place(_KEPT, source)
        if _UNKNOWN < self._seen[kept] <= length:
            self._copy(kept, self._place(_KEPT, target))

    def release(self, row: int, keep: int) -> None:
        """Forget the row's states beyond its first `keep` tokens; with none to keep, give their memory back."""
        self._forget(row, keep or _UNKNOWN)
        if not keep:
            for copy in range(STATE_COPIES):
                self.memory.discard(self._place(copy, row))

    def read(self, row: int, length: int) -> list[Array]:
        """Copies of the state behind the row's first `length` tokens."""
        return self.memory.read(self._find(row, length))

    def write(self, row: int, length: int, block: Sequence[Array]) -> None:
        """Keep what `read` returned as the row's only state, behind its first `length` tokens."""
        self._forget(row, _UNKNOWN)
        self.memory.write(self._place(_KEPT, row), block)
        self._seen[self._place(_KEPT, row)] = length

    def _place(self, copy: int, row: int) -> int:
        return copy * self._rows + row

    def _places(self, row: int) -> list[int]:
        shared = [self._between] if self._between_row == row else []
        return [*range(row, self._between, self._rows), *shared]

    def _find(self, row: int, length: int) -> int:
        """The place whose state has seen the row's first `length` tokens; the state behind none is made of zeros."""
        for place in self._places(row):
            if self._seen[place] == length:
                return place
        if length:
            known = sorted({self._seen[place] for place in self._places(row)} - {_UNKNOWN})
            raise ExecutionError(
                f"Row {row} cannot continue behind {length} tokens: its layers keep states, known behind {known} here."
            )
        self._forget(row, _UNKNOWN)
        self.memory.clear(row)
        self._seen[row] = 0
        return row

    def _one_row(self, row: int, source: int, passing: bool) -> tuple[int, int]:
        """It reads its state wherever that is, and writes over the older of the two that steps alternate between."""
        if passing:
            self._between_row, self._seen[self._between] = row, _UNKNOWN
            return source, self._between
        changing = [place for place in (self._place(0, row), self._place(1, row)) if place != source]
        return source, min(changing, key=self._seen.__getitem__)

    def _many(self, first: int, places: list[int]) -> tuple[int, int]:
        """All read the same copy, the one where most states are, after the others were copied there."""
        copy = int(sum(place // self._rows == 1 for place in places) * 2 > len(places))
        for row, place in enumerate(places, first):
            self._copy(place, self._place(copy, row))
        return self._place(copy, first), self._place(1 - copy, first)

    def _copy(self, source: int, target: int) -> None:
        if source != target:
            self._seen[target] = _UNKNOWN
            self.memory.copy(source, target)
            self._seen[target] = self._seen[source]

    def _forget(self, row: int, length: int) -> None:
        """States beyond the first `length` tokens are not, or no more, of the row's sequence."""
        for place in self._places(row):
            if self._seen[place] > length:
                self._seen[place] = _UNKNOWN
