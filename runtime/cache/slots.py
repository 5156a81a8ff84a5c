"""Slots of finished sequences whose contents are kept until the slot or its memory is needed."""

from dataclasses import dataclass

from .blocks import BlockPool


@dataclass(frozen=True)
class CachedSlot:
    """What a free slot still holds: keys and values of `tokens`, paid for with `blocks`."""

    tokens: list[int]
    blocks: int
    adapter: int = 0  # with which they were computed


class CachedSlots:
    """Cached slots by slot number, oldest first; every one of them can be given up at any time.

    Args:
        pool: where their blocks come from.
        whole: whether a slot is of use only behind all of its tokens, because its layers keep states.
    """

    def __init__(self, pool: BlockPool, *, whole: bool = False) -> None:
        self._pool = pool
        self._whole = whole
        self._slots: dict[int, CachedSlot] = {}
        self.released: list[int] = []  # slots whose memory the engine should give back

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, slot: int) -> bool:
        return slot in self._slots

    @property
    def blocks(self) -> int:
        """Blocks that all cached slots hold together."""
        return sum(warm.blocks for warm in self._slots.values())

    def keep(self, slot: int, tokens: list[int], blocks: int, needed: int, adapter: int = 0) -> None:
        """Take over a slot that holds `tokens`, and the blocks that are paid for it, of which `needed` are in use."""
        kept = min(blocks, needed)
        self._pool.give(blocks - kept)
        self._slots[slot] = CachedSlot(tokens, kept, adapter)

    def match(self, tokens: list[int], limit: int, adapter: int = 0) -> tuple[int, int]:
        """(slot, tokens shared) of the cached slot that shares the longest prefix, (-1, 0) if none does."""
        found = (
            (slot, len(warm.tokens), common_prefix(warm.tokens, tokens, limit))
            for slot, warm in self._slots.items()
            if warm.adapter == adapter
        )
        usable = ((slot, shared) for slot, length, shared in found if shared and (shared == length or not self._whole))
        return max(usable, key=lambda pair: pair[1], default=(-1, 0))

    def worth_taking(self, slot: int, shared: int, next_slot: int) -> bool:
        """Whether to continue in this cached slot itself; one that keeps most of its use is copied."""
        return slot in self._slots and (slot == next_slot or 2 * shared >= len(self._slots[slot].tokens))

    def drop(self, slot: int) -> None:
        """Forget what a slot holds because it is about to be overwritten."""
        if warm := self._slots.pop(slot, None):
            self._pool.give(warm.blocks)

    def evict(self, blocks: int, keep: int = -1) -> None:
        """Give up the oldest cached slots, except `keep`, until the pool has `blocks` free blocks or none is left."""
        for slot in [slot for slot in self._slots if slot != keep]:
            if self._pool.free >= blocks:
                return
            self.drop(slot)
            self.released.append(slot)


def common_prefix(left: list[int], right: list[int], limit: int) -> int:
    """How many leading tokens the two lists share, at most `limit`; ids are compared, never hashes."""
    limit = max(0, min(limit, len(left), len(right)))
    if left[:limit] == right[:limit]:
        return limit
    return next(index for index in range(limit) if left[index] != right[index])
