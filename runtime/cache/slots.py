"""Rows of finished sequences whose contents are kept until the row or its memory is needed."""

from dataclasses import dataclass

from ..engine.request import Sequence, common_prefix
from .blocks import BlockPool


@dataclass(frozen=True)
class WarmRow:
    """What a free row still holds: keys and values of `tokens`, paid for with `blocks`."""

    tokens: list[int]
    blocks: int


class WarmRows:
    """Warm rows by row number, oldest first; every one of them can be given up at any time.

    Args:
        pool: where their blocks come from.
        whole: whether a row is of use only behind all of its tokens, because its layers keep states.
    """

    def __init__(self, pool: BlockPool, *, whole: bool = False) -> None:
        self._pool = pool
        self._whole = whole
        self._rows: dict[int, WarmRow] = {}
        self.released: list[int] = []  # rows whose memory the engine should give back

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, row: int) -> bool:
        return row in self._rows

    @property
    def blocks(self) -> int:
        """Blocks that all warm rows hold together."""
        return sum(warm.blocks for warm in self._rows.values())

    def keep(self, sequence: Sequence, reusable: int) -> None:
        """Take over the row and blocks of a sequence that leaves it, with its first `reusable` tokens."""
        blocks = min(sequence.blocks, self._pool.blocks(sequence.length))
        self._pool.give(sequence.blocks - blocks)
        self._rows[sequence.row] = WarmRow(sequence.tokens[:reusable], blocks)

    def match(self, tokens: list[int], limit: int) -> tuple[int, int]:
        """(row, tokens shared) of the warm row that shares the longest prefix, (-1, 0) if none does."""
        found = ((row, len(warm.tokens), common_prefix(warm.tokens, tokens, limit)) for row, warm in self._rows.items())
        usable = ((row, shared) for row, length, shared in found if shared and (shared == length or not self._whole))
        return max(usable, key=lambda pair: pair[1], default=(-1, 0))

    def worth_taking(self, row: int, shared: int, next_row: int) -> bool:
        """Whether a sequence should continue in this warm row itself; a row that keeps most of its use is copied."""
        return row in self._rows and (row == next_row or 2 * shared >= len(self._rows[row].tokens))

    def drop(self, row: int) -> None:
        """Forget what a row holds because it is about to be overwritten."""
        if warm := self._rows.pop(row, None):
            self._pool.give(warm.blocks)

    def evict(self, blocks: int, keep: int = -1) -> None:
        """Give up the oldest warm rows, except `keep`, until the pool has `blocks` free blocks or none is left."""
        for row in [row for row in self._rows if row != keep]:
            if self._pool.free >= blocks:
                return
            self.drop(row)
            self.released.append(row)
