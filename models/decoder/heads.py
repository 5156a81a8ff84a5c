"""Head sizes that the attention operator accepts, whatever the checkpoint's are.

GroupQueryAttention wants head sizes that are multiples of 8 and rotary widths that are multiples of 16. Other heads are
laid out in wider ones with zeros between: zeros add nothing to any dot product, so the result is unchanged.
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from .description import Attention, Rope

Index = npt.NDArray[np.int64]


@dataclass(frozen=True)
class HeadLayout:
    """Where each of a checkpoint head's D channels lies inside the graph's `width` channels."""

    width: int
    query_key: Index  # [D]
    value: Index  # [D]
    rope: Rope | None

    @property
    def padded(self) -> bool:
        """Whether the graph's heads are wider than the checkpoint's."""
        return self.width != len(self.value)


def head_layout(attention: Attention) -> HeadLayout:
    """The layout of one attention's heads; the identity where the operator takes the head as it is."""
    size, rope = attention.head_dim, attention.rope
    rotary = 2 * len(rope.inverse_frequencies) if rope else 0
    wide = _up(rotary, 16)
    width = _up(wide + size - rotary, 16 if rope else 8)
    half = np.arange(rotary // 2)
    interleaved = rope is not None and rope.interleaved
    rotated = np.arange(rotary) if interleaved else np.concatenate([half, wide // 2 + half])
    query_key = np.concatenate([rotated, wide + np.arange(size - rotary)]).astype(np.int64)
    return HeadLayout(width, query_key, np.arange(size, dtype=np.int64), _widen(rope, wide))


def qkv_rows(attention: Attention, layout: HeadLayout) -> Index:
    """Row in the graph's packed `[q | k | v]` of each row of the checkpoint's `[q | k | v]`."""
    rotated_heads = attention.num_heads + attention.kv_heads
    query_key = per_head(rotated_heads, layout.width, layout.query_key)
    value = per_head(attention.kv_heads, layout.width, layout.value)
    return np.concatenate([query_key, rotated_heads * layout.width + value])


def per_head(heads: int, width: int, channels: Index) -> Index:
    """Channel of the graph's concatenated heads of each channel of the checkpoint's."""
    return (np.arange(heads, dtype=np.int64)[:, None] * width + channels).reshape(-1)


def _widen(rope: Rope | None, width: int) -> Rope | None:
    if rope is None:
        return None
    missing = (0.0,) * (width // 2 - len(rope.inverse_frequencies))
    long = rope.long_inverse_frequencies
    return replace(
        rope,
        inverse_frequencies=rope.inverse_frequencies + missing,
        long_inverse_frequencies=long + missing if long else (),
    )


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
