"""Slots of finished sequences whose contents are kept until the slot or its memory is needed."""

from dataclasses import dataclass

from ..engine.request import Sequence, common_prefix
from .blocks import BlockPool


@dataclass(frozen=True)
class CachedSlot:
    """What a free slot still holds: keys and values of `tokens`, paid for with `blocks`."""

    tokens: list[int]
    blocks: int


class CachedSlots:
    """Warm slots by slot number, oldest first; every one of them can be given up at any time.

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
        """Blocks that all warm slots hold together."""
        return sum(warm.blocks for warm in self._slots.values())

    def keep(self, sequence: Sequence, reusable: int) -> None:
        """Take over the slot and blocks of a sequence that leaves it, with its first `reusable` tokens."""
        blocks = min(sequence.blocks, self._pool.blocks(sequence.num_computed))
        self._pool.give(sequence.blocks - blocks)
        self._slots[sequence.slot] = CachedSlot(sequence.tokens[:reusable], blocks)

    def match(self, tokens: list[int], limit: int) -> tuple[int, int]:
        """(slot, tokens shared) of the warm slot that shares the longest prefix, (-1, 0) if none does."""
        found = (
            (slot, len(warm.tokens), common_prefix(warm.tokens, tokens, limit)) for slot, warm in self._slots.items()
        )
        usable = ((slot, shared) for slot, length, shared in found if shared and (shared == length or not self._whole))
        return max(usable, key=lambda pair: pair[1], default=(-1, 0))

    def worth_taking(self, slot: int, shared: int, next_row: int) -> bool:
        """Whether a sequence should continue in this warm slot itself; a slot that keeps most of its use is copied."""
        return slot in self._slots and (slot == next_row or 2 * shared >= len(self._slots[slot].tokens))

    def drop(self, slot: int) -> None:
        """Forget what a slot holds because it is about to be overwritten."""
        if warm := self._slots.pop(slot, None):
            self._pool.give(warm.blocks)

    def evict(self, blocks: int, keep: int = -1) -> None:
        """Give up the oldest warm slots, except `keep`, until the pool has `blocks` free blocks or none is left."""
        for slot in [slot for slot in self._slots if slot != keep]:
            if self._pool.free >= blocks:
                return
            self.drop(slot)
            self.released.append(slot)
