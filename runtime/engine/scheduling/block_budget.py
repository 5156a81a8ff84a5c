"""Block accounting: which sequence holds how many blocks of KV memory."""

from ...cache.blocks import BlockPool
from ...cache.slots import CachedSlots
from .sequence import Sequence

MAX_PREEMPTIONS = 2


class BlockBudget:
    """Reserves blocks for sequences, evicting cached slots when the pool has too few.

    Args:
        pool: the blocks.
        cached: slots of finished sequences, which may be evicted.
        optimistic: reserve what a sequence needs now, instead of the most it may need.
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
        """Reserve `price` blocks in all for the sequence. Evicts cached slots if it must, the slot `keep` last.

        Returns:
            Whether the sequence holds them. If not, nothing has changed.
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
        """Return the blocks of a sequence that left its slot to the pool."""
        self.pool.give(sequence.blocks)
        sequence.blocks = 0
        sequence.slot = -1
