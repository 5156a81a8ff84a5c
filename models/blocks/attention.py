"""Grouped-query attention over a cache that it updates in place."""

from dataclasses import replace
from typing import Any

from onnxscript.nn import Module

from runtime.errors import UnsupportedError

from ..description import Attention as Description
from ..description import HeadNorm
from ..heads import HeadLayout, head_layout, per_head, qkv_rows
from ..target import Target
from .grouped_query import Heads, attend
from .linear import Linear
from .norm import Norm
from .parameter import Plan, parameter, scalar
from .step import Step


class Attention(Module):
    """x `[batch, sequence, H]` → the same shape; past and present `[batch, kv_heads, capacity, width]`."""

    def __init__(self, about: Description, hidden_size: int, target: Target, output_scale: float = 1.0) -> None:
        super().__init__()
        self.about, self.target = about, target
        self.layout = layout = head_layout(about)
        inner = about.num_heads * layout.width
        packed = inner + 2 * about.kv_heads * layout.width
        rows = qkv_rows(about, layout) if layout.padded else None
        columns = per_head(about.num_heads, layout.width, layout.value) if layout.padded else None
        self.qkv_proj = Linear(hidden_size, packed, about.qkv_bias, target, out_index=rows)
        self.o_proj = Linear(inner, hidden_size, about.output_bias, target, in_index=columns, scale=output_scale)
        if about.qk_norm is not None:
            self.q_norm = QueryKeyNorm(about.qk_norm, about.num_heads, layout, target)
            self.k_norm = QueryKeyNorm(about.qk_norm, about.kv_heads, layout, target)
        if about.sinks:
            self.sinks = parameter((about.num_heads,), target)

    def forward(self, op: Any, x: Any, step: Step, past: tuple[Any, Any]) -> tuple[Any, tuple[Any, Any]]:
        """Emit projection, attention with fused rope, and output projection; returns the output and the present."""
        packed = self.qkv_proj(op, x)
        if self.about.qk_norm is None:
            packed = self._clip(op, packed, "clip")
        heads = self._heads(op, packed, step)
        attended, present = attend(op, self.about, step, heads, past, self.sinks if self.about.sinks else None)
        return self.o_proj(op, attended), present

    def _heads(self, op: Any, packed: Any, step: Step) -> Heads:
        """Queries, keys and values apart where something happens to them first; else all in the first."""
        about, width = self.about, self.layout.width
        if about.qk_norm is None and about.query_growth is None:
            return packed, None, None
        sizes = [about.num_heads * width, about.kv_heads * width, about.kv_heads * width]
        query, key, value = op.Split(packed, op.Constant(value_ints=sizes), axis=-1, _outputs=3, _name="split")
        if about.query_growth is not None:
            query = op.Mul(query, step.growth[about.query_growth], _name="query_growth")
        if about.qk_norm is not None and about.qk_norm.after_rope:
            query, key = self._rotate(op, query, step, "q"), self._rotate(op, key, step, "k")
        if about.qk_norm is not None:
            query, key = self.q_norm(op, query), self.k_norm(op, key)
            query, key = self._clip(op, query, "q_clip"), self._clip(op, key, "k_clip")
            value = self._clip(op, value, "v_clip")
        return query, key, value

    def _clip(self, op: Any, x: Any, name: str) -> Any:
        bound = self.about.clip
        if bound is None:
            return x
        return op.Clip(x, scalar(op, -bound, self.target), scalar(op, bound, self.target), _name=name)

    def _rotate(self, op: Any, x: Any, step: Step, name: str) -> Any:
        heads = self.about.num_heads if name == "q" else self.about.kv_heads
        rope = self.layout.rope
        assert rope is not None
        rotary = 2 * len(rope.inverse_frequencies)
        return op.RotaryEmbedding(
            x, step.positions, *step.rope_tables[rope], num_heads=heads, interleaved=int(rope.interleaved),
            rotary_embedding_dim=0 if rotary == self.layout.width else rotary,
            _domain="com.microsoft", _name=f"{name}_rope",
        )  # fmt: skip


class QueryKeyNorm(Module):
    """Norm of projected queries or keys `[batch, sequence, heads * width]`, over each head or over all of them.

    In padded heads the zeros count as channels: weight and epsilon are scaled so that they do not.
    """

    def __init__(self, about: HeadNorm, heads: int, layout: HeadLayout, target: Target) -> None:
        super().__init__()
        self.about, self.heads, self.width = about, heads, layout.width
        share = len(layout.value) / layout.width
        if share != 1 and about.norm.kind != "rms":
            raise UnsupportedError(
                f"LayerNorms of query and key heads need a head_dim that is a multiple of 16, not {len(layout.value)}."
            )
        channels = layout.query_key if layout.padded else None
        every = per_head(heads, layout.width, layout.query_key) if layout.padded else None
        scaled = Plan(offset=about.norm.offset * share**0.5, scale=share**0.5)
        shape, plan = {
            "head": ((layout.width,), replace(scaled, rows=channels)),
            "heads": ((heads, layout.width), replace(scaled, columns=channels)),
            "all": ((heads * layout.width,), replace(scaled, rows=every)),
        }[about.over]
        norm = replace(about.norm, epsilon=about.norm.epsilon * share)
        self.norm = Norm(norm, shape, target, plan)
        self.norm._set_name("")  # its weight is q_norm.weight, as in every checkpoint

    def forward(self, op: Any, x: Any) -> Any:
        """Emit the norm between two reshapes, or without them over everything."""
        if self.about.over == "all":
            return self.norm(op, x)
        heads = op.Reshape(x, op.Constant(value_ints=[0, 0, self.heads, self.width]), _name="heads")
        return op.Reshape(self.norm(op, heads), op.Constant(value_ints=[0, 0, self.heads * self.width]), _name="flat")
