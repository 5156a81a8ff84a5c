"""The one attention operator of all families: GroupQueryAttention over a cache that it updates in place."""

import math
from typing import Any

from ...decoder.description import Attention
from ...decoder.heads import head_layout
from ..step import Step

Heads = tuple[
    Any, Any, Any
]  # queries, keys, values `[batch, sequence, heads * width]`; or all of them packed, None, None


def attend(
    op: Any, about: Attention, step: Step, heads: Heads, past: tuple[Any, Any], sinks: Any = None
) -> tuple[Any, tuple[Any, Any]]:
    """Emit attention with fused rope, unless queries and keys come rotated.

    Returns:
        `[batch, sequence, num_heads * width]`, and the present: key and value `[batch, kv_heads, capacity, width]`.
    """
    attended, *present = op.GroupQueryAttention(
        *heads, *past, step.seqlens_k, step.total_sequence_length, *_optional(about, step, sinks),
        _domain="com.microsoft", _outputs=3, **_attributes(about),
    )  # fmt: skip
    return attended, (present[0], present[1])


def _fused_rope(about: Attention) -> bool:
    return about.rope is not None and not (about.qk_norm is not None and about.qk_norm.after_rope)


def _optional(about: Attention, step: Step, sinks: Any) -> list[Any]:
    """cos, sin, position_ids, attention_bias, head_sink, four unused ones, query_seqlens; no absent ones at the end."""
    rope = head_layout(about).rope
    cos, sin = step.rope_tables[rope] if rope is not None and _fused_rope(about) else (None, None)
    positions = step.rope_rows[rope] if rope is not None and rope.switch is not None else None
    bias = step.alibi[about.alibi] if about.alibi is not None else None
    inputs = [cos, sin, positions, bias, sinks, None, None, None, None, step.query_seqlens]
    while inputs and inputs[-1] is None:
        inputs.pop()
    return inputs


def _attributes(about: Attention) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "num_heads": about.num_heads,
        "kv_num_heads": about.kv_heads,
        "scale": 1 / math.sqrt(about.head_dim) if about.scale is None else about.scale,
        "do_rotary": int(_fused_rope(about)),
        "rotary_interleaved": int(about.rope is not None and about.rope.interleaved),
        "local_window_size": -1 if about.window is None else about.window,
    }
    return attributes if about.softcap is None else attributes | {"softcap": about.softcap}
