"""What the KV cache costs in bytes, and what it saves in work: the formulas, with no memory behind them."""

from collections.abc import Iterable
from math import prod

# Of the states of a slot: before the last step (to undo it), after it, and one kept for other sequences to continue.
STATE_COPIES = 3


def kv_bytes_per_token(layers: Iterable[tuple[int, int]], bits: int) -> int:
    """Bytes that one token adds to the cache: a key and a value per layer.

    Args:
        layers: (kv_heads, head_dim) of each layer.
        bits: bits of one stored number: 32, 16 or 8.

    Example:
        >>> kv_bytes_per_token([(32, 128)] * 32, bits=16)
        524288
    """
    return sum(2 * kv_heads * head_dim * bits // 8 for kv_heads, head_dim in layers)


def state_bytes(shapes: Iterable[Iterable[int]]) -> int:
    """Bytes of the float32 states of one sequence, once.

    Args:
        shapes: sizes of each state, without the batch.

    Example:
        >>> state_bytes([(64, 3), (8, 16, 16)])
        8960
    """
    return sum(4 * prod(shape) for shape in shapes)


def positions_computed(tokens: int, *, cached: bool) -> int:
    """Positions that pass through the decoder while a text grows from nothing to `tokens` tokens, one at a time.

    With a cache each position is computed once; without one every step computes all positions again.

    Example:
        >>> positions_computed(500, cached=True), positions_computed(500, cached=False)
        (500, 125250)
    """
    return tokens if cached else tokens * (tokens + 1) // 2
