"""Who has paid for how many blocks of KV memory."""

from ..cache.blocks import BlockPool
from ..cache.slots import CachedSlots
from .request import Sequence

MAX_PREEMPTIONS = 2


class BlockBudget:
    """Takes blocks for sequences, and evicts cached slots where the pool has too few.

    Args:
        pool: the blocks.
        cached: slots of finished sequences, whose blocks can be had.
        optimistic: ask for what a sequence needs now, not for what it may come to need.
    """

    def __init__(self, pool: BlockPool, cached: CachedSlots, *, optimistic: bool) -> None:
        self.pool = pool
        self._cached = cached
        self._optimistic = optimistic

    def price(self, sequence: Sequence) -> int:
        """Blocks that a sequence must hold to be admitted."""
        sure = not self._optimistic or sequence.preemptions >= MAX_PREEMPTIONS
        return self.pool.blocks(sequence.positions if sure else min(len(sequence.tokens) + 1, sequence.positions))

    def pay(self, sequence: Sequence, price: int, keep: int = -1) -> bool:
        """Make the sequence hold `price` blocks, evicting cached slots for them, the slot `keep` last.

        Returns:
            Whether it holds them now; if not, nothing has changed.
        """
        missing = price - sequence.blocks
        if missing <= 0:
            return True
        if missing > self.pool.free + self._cached.blocks:
            return False
        self._cached.evict(missing, keep)
        self._cached.evict(missing)
        taken = self.pool.take(missing)
        assert taken
        sequence.blocks = price
        return True

    def give_back(self, sequence: Sequence) -> None:
        """A sequence has left its slot: take its blocks back into the pool."""
        self.pool.give(sequence.blocks)
        sequence.blocks = 0
        sequence.slot = -1
