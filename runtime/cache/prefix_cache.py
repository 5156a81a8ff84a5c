"""Keys and values of prompts seen before, kept in host memory in blocks, so that a shared beginning is not recomputed.

    root ── block of ids ── block of ids ── …        one tree for all prompts; a block is found by its ids, under its
                         └─ block of ids             parent, so that ids are compared and never only their hash

A hit is a copy into the slot. The least recently used blocks go first when the byte limit is reached; since a use
refreshes a block's ancestors after itself, the oldest block never has children.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from .host import Array

BLOCK_TOKENS = 64

Ids = tuple[int, ...]


@dataclass(eq=False)
class Block:
    """Keys and values of `ids`, computed behind those of all blocks above it; in some, also states behind them."""

    ids: Ids
    parent: "Block | None"
    data: list[Array]
    states: list[Array] = field(default_factory=list)
    children: dict[Ids, "Block"] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of its arrays."""
        return sum(part.nbytes for part in (*self.data, *self.states))


class PrefixCache:
    """Blocks of prompts, least recently used first out. One thread uses it.

    Args:
        limit: most bytes of keys and values.
        block_tokens: tokens of a block; only whole blocks are kept and found.
    """

    def __init__(self, limit: int, block_tokens: int = BLOCK_TOKENS) -> None:
        self.limit = limit
        self.block_tokens = block_tokens
        self.size = 0
        self._roots: dict[int, Block] = {}  # by adapter: keys and values are of use to the same one only
        self._by_use: OrderedDict[Block, None] = OrderedDict()  # oldest first

    def __len__(self) -> int:
        return len(self._by_use)

    def match(self, tokens: list[int], limit: int, adapter: int = 0) -> list[Block]:
        """The blocks that hold the longest known beginning of `tokens`, not longer than `limit` tokens."""
        path: list[Block] = []
        node = self._root(adapter)
        for start in range(0, limit - self.block_tokens + 1, self.block_tokens):
            child = node.children.get(tuple(tokens[start : start + self.block_tokens]))
            if child is None:
                break
            path.append(child)
            node = child
        self._touch(path)
        return path

    def store(self, tokens: list[int], length: int, read: Callable[[int, int], list[Array]], adapter: int = 0) -> None:
        """Keep the whole blocks among the first `length` tokens; `read(start, stop)` copies those not known yet."""
        path = self.match(tokens, length, adapter)
        for start in range(len(path) * self.block_tokens, length - self.block_tokens + 1, self.block_tokens):
            stop = start + self.block_tokens
            parent = path[-1] if path else self._root(adapter)
            block = Block(tuple(tokens[start:stop]), parent, read(start, stop))
            if not self._make_room(block.size, set(path)):
                break
            parent.children[block.ids] = block
            self._by_use[block] = None
            self.size += block.size
            path.append(block)
        self._touch(path)

    def store_states(self, tokens: list[int], length: int, read: Callable[[], list[Array]], adapter: int = 0) -> None:
        """Keep the states behind the first `length` tokens, whole blocks, where the last of these blocks is known."""
        path = self.match(tokens, length, adapter)
        if len(path) * self.block_tokens != length or path[-1].states:
            return
        states = read()
        size = sum(part.nbytes for part in states)
        if self._make_room(size, set(path)):
            path[-1].states = states
            self.size += size

    def _root(self, adapter: int) -> Block:
        return self._roots.setdefault(adapter, Block((), None, []))

    def _touch(self, path: list[Block]) -> None:
        for block in reversed(path):
            self._by_use.move_to_end(block)

    def _make_room(self, size: int, needed: set[Block]) -> bool:
        """Drop the oldest blocks until `size` bytes fit; False if only blocks that are `needed` are left to drop."""
        while self.size + size > self.limit:
            oldest = next(iter(self._by_use), None)
            if oldest is None or oldest in needed:
                return False
            self._drop(oldest)
        return True

    def _drop(self, block: Block) -> None:
        assert not block.children
        assert block.parent is not None
        del block.parent.children[block.ids]
        del self._by_use[block]
        self.size -= block.size
