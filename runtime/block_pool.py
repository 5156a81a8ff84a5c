"""The budget of keys and values, in blocks of tokens."""


class BlockPool:
    """Counts KV memory in blocks of tokens against a fixed total. The system never says no, it kills: so we count.

    `free + taken == total` always holds; who took what is the business of the takers.
    """

    def __init__(self, total: int, block_tokens: int) -> None:
        self.total = total
        self.free = total
        self.block_tokens = block_tokens

    @classmethod
    def of_bytes(cls, budget: int, bytes_per_token: int, block_tokens: int = 16) -> "BlockPool":
        """The pool that a byte budget pays for."""
        return cls(budget // (bytes_per_token * block_tokens), block_tokens)

    @property
    def tokens(self) -> int:
        """Tokens that the whole pool can hold."""
        return self.total * self.block_tokens

    def blocks(self, tokens: int) -> int:
        """Blocks that hold `tokens` tokens."""
        return -(-tokens // self.block_tokens)

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
