"""The budget of keys and values, in blocks of tokens."""

DEFAULT_BLOCK = 16  # tokens


class BlockPool:
    """Counts KV memory in blocks of tokens against a fixed total. The system never says no, it kills: so we count.

    `free + taken == total` always holds; who took what is the business of the takers.

    Args:
        total: blocks that there are.
        block_tokens: tokens of a block.
        row_blocks: blocks' worth of memory that a slot takes however few tokens it has: states of a fixed size.
    """

    def __init__(self, total: int, block_tokens: int, row_blocks: int = 0) -> None:
        self.total = total
        self.free = total
        self.block_tokens = block_tokens
        self.row_blocks = row_blocks

    @classmethod
    def of_bytes(
        cls, budget: int, bytes_per_token: int, block_tokens: int = DEFAULT_BLOCK, row_bytes: int = 0
    ) -> "BlockPool":
        """The pool that a byte budget pays for."""
        block_bytes = bytes_per_token * block_tokens
        return cls(budget // block_bytes, block_tokens, -(-row_bytes // block_bytes))

    @property
    def tokens(self) -> int:
        """Most tokens that one slot can hold."""
        return max(0, self.total - self.row_blocks) * self.block_tokens

    def blocks(self, tokens: int) -> int:
        """Blocks that a slot of `tokens` tokens takes."""
        return self.row_blocks - (-tokens // self.block_tokens)

    def take(self, blocks: int) -> bool:
        """Take blocks if that many are free; says whether it did."""
        if blocks > self.free:
            return False
        self.free -= blocks
        return True

    def give(self, blocks: int) -> None:
        """Return blocks taken earlier."""
        self.free += blocks
        assert 0 <= self.free <= self.total
