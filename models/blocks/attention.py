"""Grouped-query attention over a cache that it updates in place."""

import math
from dataclasses import dataclass
from typing import Any

from onnxscript.nn import Module

from ..description import Attention as Description
from ..heads import head_layout, output_rows, qkv_rows
from ..target import Target
from .linear import Linear


@dataclass(frozen=True)
class Step:
    """What every attention of a step shares: graph inputs, and cos/sin tables `[context, r/2]` by rope."""

    seqlens_k: Any  # int32 [batch]
    total_sequence_length: Any  # int32 scalar
    rope_tables: dict[Any, tuple[Any, Any]]


class Attention(Module):
    """x `[batch, sequence, H]` → the same shape; past and present `[batch, kv_heads, capacity, width]`."""

    def __init__(self, description: Description, hidden_size: int, target: Target) -> None:
        super().__init__()
        self.description = description
        self.layout = layout = head_layout(description)
        inner = description.num_heads * layout.width
        packed = inner + 2 * description.kv_heads * layout.width
        spread = layout.padded
        self.qkv_proj = Linear(
            hidden_size,
            packed,
            description.qkv_bias,
            target,
            out_index=qkv_rows(description, layout) if spread else None,
        )
        self.o_proj = Linear(
            inner,
            hidden_size,
            description.output_bias,
            target,
            in_index=output_rows(description, layout) if spread else None,
        )

    def forward(self, op: Any, x: Any, step: Step, past: tuple[Any, Any]) -> tuple[Any, tuple[Any, Any]]:
        """Emit projection, attention with fused rope, and output projection; returns the output and the present."""
        about, rope = self.description, self.layout.rope
        cos, sin = step.rope_tables[rope] if rope else (None, None)
        attended, key, value = op.GroupQueryAttention(
            self.qkv_proj(op, x), None, None, *past, step.seqlens_k, step.total_sequence_length, cos, sin,
            num_heads=about.num_heads,
            kv_num_heads=about.kv_heads,
            scale=about.scale or 1 / math.sqrt(about.head_dim),
            do_rotary=int(rope is not None),
            rotary_interleaved=int(rope is not None and rope.interleaved),
            local_window_size=-1 if about.window is None else about.window,
            _domain="com.microsoft",
            _outputs=3,
        )  # fmt: skip
        return self.o_proj(op, attended), (key, value)
