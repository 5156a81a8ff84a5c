"""Which blocks of a paged cache hold the tokens of each slot. Numbers only: no memory, no model.

Slots that begin alike share blocks. A block that several slots hold is copied when one of them is about to write into
it, and not before: a slot that moves to another place costs nothing.
"""

import numpy as np
import numpy.typing as npt

from ..errors import DeviceMemoryError

Table = npt.NDArray[np.int32]
Copy = tuple[int, int]  # source block, target block


class BlockTables:
    """A row of block numbers for each slot, and how many slots hold each block.

    `free + blocks held by any slot == blocks` always holds.

    Args:
        slots: rows.
        blocks: blocks that there are.
        block_tokens: tokens of a block.
        longest: most tokens of one slot.

    Attributes:
        rows: int32 `[slots, blocks of the longest]`; 0 where a slot has no block, which is never looked at.
    """

    def __init__(self, slots: int, blocks: int, block_tokens: int, longest: int) -> None:
        self.block_tokens = block_tokens
        self.rows: Table = np.zeros((slots, self.blocks_of(longest)), np.int32)
        self._counts = [0] * slots
        self._holders = [0] * blocks
        self._free = list(range(blocks - 1, -1, -1))

    @property
    def free(self) -> int:
        """Blocks that no slot holds."""
        return len(self._free)

    def blocks_of(self, tokens: int) -> int:
        """The number of blocks that hold `tokens` tokens."""
        return -(-tokens // self.block_tokens)

    def held(self, slot: int) -> list[int]:
        """The blocks of a slot, in the order of its tokens."""
        return [int(block) for block in self.rows[slot, : self._counts[slot]]]

    def write(self, slot: int, start: int, stop: int) -> list[Copy]:
        """Make positions `[start, stop)` of a slot its own, to be written.

        Returns:
            Blocks whose contents must be copied before anything is written: what lies before `start` in a shared one.

        Raises:
            DeviceMemoryError: too few blocks are free; nothing has changed.
        """
        first, end, count = start // self.block_tokens, self.blocks_of(stop), self._counts[slot]
        assert first <= count, "tokens before `start` must be there"
        if end <= count and all(self._holders[block] == 1 for block in self.rows[slot, first:end]):
            return []  # most steps
        shared = [i for i in range(first, min(end, count)) if self._holders[self.rows[slot, i]] > 1]
        missing = [*shared, *range(count, end)]
        if len(missing) > len(self._free):
            raise DeviceMemoryError(
                f"{len(missing)} more blocks of keys and values are needed and {len(self._free)} are free. "
                "Raise --kv-memory, or lower --max-concurrency."
            )
        copies = []
        for index in missing:
            old, new = int(self.rows[slot, index]), self._free.pop()
            if index < count:
                self._holders[old] -= 1
            if index < count and index * self.block_tokens < start:
                copies.append((old, new))
            self.rows[slot, index], self._holders[new] = new, 1
        self._counts[slot] = max(count, end)
        return copies

    def share(self, source: int, target: int, length: int) -> None:
        """Let a slot hold the first `length` tokens of another one, in place of its own."""
        if source == target:
            return
        blocks = self.held(source)[: self.blocks_of(length)]
        assert len(blocks) == self.blocks_of(length)
        for block in blocks:
            self._holders[block] += 1
        self.keep(target, 0)
        self.rows[target, : len(blocks)] = blocks
        self._counts[target] = len(blocks)

    def keep(self, slot: int, length: int) -> None:
        """Let go of the blocks behind the first `length` tokens of a slot."""
        kept = min(self.blocks_of(length), self._counts[slot])
        for block in self.rows[slot, kept : self._counts[slot]]:
            self._holders[block] -= 1
            if not self._holders[block]:
                self._free.append(int(block))
        self.rows[slot, kept : self._counts[slot]] = 0
        self._counts[slot] = kept
