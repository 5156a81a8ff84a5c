"""Grouped-query attention over a cache that it updates in place."""

from dataclasses import replace
from typing import Any

from onnxscript.nn import Module

from runtime.errors import UnsupportedError

from ...decoder.description import Attention as Description
from ...decoder.description import HeadNorm
from ...decoder.heads import HeadLayout, head_layout, per_head, qkv_rows
from ...targets.target import Target
from ..linear import Linear
from ..norm import Norm
from ..parameter import Plan, parameter, scalar
from ..step import Step
from .grouped_query import Heads, attend


class Attention(Module):
    """x `[batch, sequence, H]` → the same shape; past and present `[batch, kv_heads, capacity, width]`."""

    def __init__(self, about: Description, hidden_size: int, target: Target, output_scale: float = 1.0) -> None:
        super().__init__()
        self.about, self.target = about, target
        self.layout = layout = head_layout(about)
        inner = about.num_heads * layout.width
        columns = per_head(about.num_heads, layout.width, layout.value) if layout.padded else None
        self._add_projection(hidden_size, inner)
        self.o_proj = Linear(inner, hidden_size, about.output_bias, target, in_index=columns, scale=output_scale)
        if about.qk_norm is not None:
            self.q_norm = HeadsNorm(about.qk_norm, about.num_heads, layout, target)
        if about.qk_norm is not None and about.keys_of is None:
            self.k_norm = HeadsNorm(about.qk_norm, about.kv_heads, layout, target)
        if about.value_norm is not None and about.keys_of is None:
            self.v_norm = HeadsNorm(HeadNorm(about.value_norm), about.kv_heads, layout, target)
        if about.sinks:
            self.sinks = parameter((about.num_heads,), target)

    def _add_projection(self, hidden_size: int, inner: int) -> None:
        """Packed `[q | k | v]`, or what a layer has of them."""
        about, layout = self.about, self.layout
        keys = about.kv_heads * layout.width
        if layout.padded and (about.keys_of is not None or about.values_are_keys or about.output_gate):
            raise UnsupportedError(
                f"shared keys, and gates on the output, need a head_dim that is a multiple of 16, not {about.head_dim}."
            )
        if about.keys_of is not None:
            self.q_proj = Linear(hidden_size, inner, about.qkv_bias, self.target)
        elif about.values_are_keys:
            self.qk_proj = Linear(hidden_size, inner + keys, about.qkv_bias, self.target)
        else:
            rows = qkv_rows(about, layout) if layout.padded else None
            gate = inner if about.output_gate else 0
            self.qkv_proj = Linear(hidden_size, inner + 2 * keys + gate, about.qkv_bias, self.target, out_index=rows)

    def forward(self, op: Any, x: Any, step: Step, past: tuple[Any, Any]) -> tuple[Any, tuple[Any, Any]]:
        """Emit projection, attention with fused rope, and output projection; returns the output and the present."""
        heads, gate = (self._borrowing(op, x), None) if self.about.keys_of is not None else self._heads(op, x, step)
        attended, present = attend(op, self.about, step, heads, past, self.sinks if self.about.sinks else None)
        if gate is not None:
            attended = op.Mul(attended, op.Sigmoid(gate, _name="gate"), _name="gated")
        return self.o_proj(op, attended), present

    def _heads(self, op: Any, x: Any, step: Step) -> tuple[Heads, Any]:
        """Queries, keys and values apart where something happens to them first, else all in the first; and the gate."""
        about = self.about
        if about.qk_norm is None and about.query_growth is None and not (about.values_are_keys or about.output_gate):
            return (self._clip(op, self.qkv_proj(op, x), "clip"), None, None), None
        query, key, value, gate = self._split(op, x)
        query = step.grown(op, query, about.query_growth)
        if about.qk_norm is not None and about.qk_norm.after_rope:
            query, key = self._rotate(op, query, step, "q"), self._rotate(op, key, step, "k")
        if about.qk_norm is not None:
            query, key = self.q_norm(op, query), self.k_norm(op, key)
        if about.value_norm is not None:
            value = self.v_norm(op, value)
        clipped = (self._clip(op, part, f"{name}_clip") for part, name in ((query, "q"), (key, "k"), (value, "v")))
        query, key, value = clipped
        return (query, key, value), gate

    def _split(self, op: Any, x: Any) -> tuple[Any, Any, Any, Any]:
        """Queries, keys, values, and the output's gate or None."""
        about, width = self.about, self.layout.width
        sizes = [about.num_heads * width, about.kv_heads * width, about.kv_heads * width]
        if about.values_are_keys:
            packed, sizes = self.qk_proj(op, x), sizes[:2]
            query, key = op.Split(packed, op.Constant(value_ints=sizes), axis=-1, _outputs=2, _name="split")
            return query, key, key, None
        if about.output_gate:
            sizes.append(sizes[0])
        packed, widths = self.qkv_proj(op, x), op.Constant(value_ints=sizes)
        query, key, value, *gate = op.Split(packed, widths, axis=-1, _outputs=len(sizes), _name="split")
        return query, key, value, gate[0] if gate else None

    def _borrowing(self, op: Any, x: Any) -> Heads:
        """Queries alone: no keys and values are added to those of the other layer."""
        query = self.q_proj(op, x)
        none = op.Slice(query, [0, 0], [0, self.about.kv_heads * self.layout.width], [1, 2], _name="no_keys")
        return self.q_norm(op, query) if self.about.qk_norm is not None else query, none, none

    def _clip(self, op: Any, x: Any, name: str) -> Any:
        bound = self.about.clip
        if bound is None:
            return x
        low, high = scalar(op, -bound, self.target), scalar(op, bound, self.target)
        if self.target.has_kernel("ai.onnx::Clip"):
            return op.Clip(x, low, high, _name=name)
        return op.Min(op.Max(x, low, _name=f"{name}.low"), high, _name=name)

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


class HeadsNorm(Module):
    """Norm of projected queries, keys or values `[batch, sequence, heads * width]`, over each head or over all of them.

    In padded heads the zeros count as channels: weight and epsilon are scaled so that they do not.
    """

    def __init__(self, about: HeadNorm, heads: int, layout: HeadLayout, target: Target) -> None:
        super().__init__()
        self.about, self.heads, self.width = about, heads, layout.width
        share = len(layout.value) / layout.width
        if share != 1 and (about.norm.kind != "rms" or not about.norm.weight):
            raise UnsupportedError(
                f"LayerNorms and norms without weights of query, key or value heads need a head_dim that is a multiple "
                f"of 16, not {len(layout.value)}."
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
