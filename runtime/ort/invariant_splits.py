"""How a chunk is cut so that every way to cut a prompt gives the same bits."""

MIN_CHUNK = 2  # tokens; a chunk of one takes the decode kernel, whose last bit may differ


def invariant_splits(length: int, blocks: frozenset[int]) -> list[int]:
    """Ends of the pieces in which a chunk of `length` tokens is run: itself, or itself less a short tail, and the tail.

    GroupQueryAttention on CPU takes query slots in blocks of 2·head_dim, and a block of a single slot takes another
    kernel, whose last bits differ. Without such blocks, every way to cut a prompt into chunks gives the same bits.
    """

    def lonely(slots: int) -> bool:
        return any(slots % block == 1 for block in blocks)

    tails = range(2, length - 1)
    if not lonely(length) or not tails:
        return [length]
    tail = next((tail for tail in tails if not lonely(tail) and not lonely(length - tail)), 0)
    return [length - tail, length] if tail else [length]
