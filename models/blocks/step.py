"""What every layer of a step shares: lengths, positions, rope tables, attention biases; emitted once."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript.nn import Module

from ..decoder.description import Attention, Decoder, Rope
from ..decoder.heads import head_layout
from ..targets.target import Target
from .parameter import constant

_CODES = {"float32": 1, "float16": 10, "bfloat16": 16}
_INT64 = 7

Alibi = tuple[float, ...]
Growth = tuple[float, int]


@dataclass(frozen=True)
class Step:
    """Values of one step, keyed by what the layers' descriptions ask for.

    Args:
        seqlens_k: int32 [batch], tokens in the cache after the step, minus one.
        total_sequence_length: int32 scalar, the largest of seqlens_k + 1.
        query_seqlens: int32 [batch], how many ids of each row are no padding; None where the graph has no such input.
        positions: int64 [batch, sequence], or None where nobody needs them.
        rope_tables: cos and sin [rows, r/2] of each rope.
        rope_rows: int64 [batch, sequence], rows of the tables of ropes that switch; others count by themselves.
        alibi: [1, N, sequence, total] by slopes.
        growth: [batch, sequence, 1] by (beta, period).
        layer_inputs: [batch, sequence, width] of each layer, where layers have inputs of their own.
    """

    seqlens_k: Any
    total_sequence_length: Any
    query_seqlens: Any
    positions: Any
    rope_tables: dict[Rope, tuple[Any, Any]]
    rope_rows: dict[Rope, Any]
    alibi: dict[Alibi, Any]
    growth: dict[Growth, Any]
    layer_inputs: list[Any] = field(default_factory=list)

    def grown(self, op: Any, query: Any, growth: Growth | None) -> Any:
        """Queries `[batch, sequence, …]`, larger the further behind they stand where the layer wants that."""
        return query if growth is None else op.Mul(query, self.growth[growth], _name="query_growth")


class SharedInputs(Module):
    """Emits a Step from ids `[batch, sequence]` and the lengths."""

    def __init__(self, decoder: Decoder, target: Target) -> None:
        super().__init__()
        self.decoder, self.target = decoder, target
        attentions = [layer.attention for layer in decoder.layers if isinstance(layer.attention, Attention)]
        self.ropes = [rope for rope in dict.fromkeys(head_layout(a).rope for a in attentions) if rope]
        self.alibis = [alibi for alibi in dict.fromkeys(a.alibi for a in attentions) if alibi]
        self.growths = [growth for growth in dict.fromkeys(a.query_growth for a in attentions) if growth]
        self.switching = [rope for rope in self.ropes if rope.switch is not None]
        rotated_early = any(a.qk_norm and a.qk_norm.after_rope for a in attentions)
        self.counts = bool(decoder.positions or self.switching or self.growths or rotated_early)
        for number, rope in enumerate(self.ropes):
            self._add_frequencies(rope, number)
        self._slopes = {alibi: self._add_slopes(alibi, i) for i, alibi in enumerate(self.alibis)}

    def forward(self, op: Any, ids: Any, seqlens_k: Any, total_sequence_length: Any, query_seqlens: Any) -> Step:
        """Emit what the layers need, and nothing else."""
        positions = self._positions(op, ids, seqlens_k, query_seqlens) if self.counts else None
        return Step(
            seqlens_k,
            total_sequence_length,
            query_seqlens,
            positions,
            {rope: self._rope_tables(op, rope, number) for number, rope in enumerate(self.ropes)},
            {rope: self._rope_rows(op, rope, positions, seqlens_k) for rope in self.switching},
            {alibi: self._alibi_bias(op, ids, total_sequence_length, alibi) for alibi in self.alibis},
            {growth: self._query_growth(op, positions, *growth) for growth in self.growths},
        )

    def _positions(self, op: Any, ids: Any, seqlens_k: Any, query_seqlens: Any) -> Any:
        """seqlens_k + 1 - query_seqlens + column; without query_seqlens, max(seqlens_k + 1 - sequence, 0) + column.

        The maximum serves right-padded first prompts, whose rows are shorter than the batch is wide.
        """
        zero, one = op.Constant(value_ints=[0]), op.Constant(value_ints=[1])
        # Counted, not made of the shape: on a GPU a shape is on the host, and what is made of it there is copied.
        counts = op.CumSum(op.Add(self._zeros(op, ids), one, _name="ones"), op.Constant(value_int=1), _name="counts")
        ends = op.Cast(seqlens_k, to=_INT64, _name="last")
        lengths = op.Unsqueeze(op.Add(ends, one, _name="lengths"), [1], _name="length_column")
        if query_seqlens is None:
            new = op.Gather(counts, op.Constant(value_ints=[-1]), axis=1, _name="width")
        else:
            new = op.Unsqueeze(op.Cast(query_seqlens, to=_INT64, _name="new"), [1], _name="new_column")
        first = op.Max(op.Sub(lengths, new, _name="past"), zero, _name="first")
        return op.Add(first, op.Sub(counts, one, _name="columns"), _name="positions")

    def _zeros(self, op: Any, ids: Any) -> Any:
        return op.Sub(ids, ids, _name="zeros")

    def _rope_rows(self, op: Any, rope: Rope, positions: Any, seqlens_k: Any) -> Any:
        """The positions, moved behind the short table in sequences of more than `switch` tokens."""
        last = op.Cast(seqlens_k, to=_INT64, _name="last_position")
        long = op.Cast(op.GreaterOrEqual(last, op.Constant(value_int=rope.switch)), to=_INT64, _name="is_long")
        moved = op.Mul(long, op.Constant(value_int=rope.switch), _name="table_start")
        return op.Add(positions, op.Unsqueeze(moved, [1], _name="table_start_column"), _name="rope_rows")

    def _alibi_bias(self, op: Any, ids: Any, total_sequence_length: Any, alibi: Alibi) -> Any:
        """slope * key position: what a whole row has in common does not matter to its softmax.

        The rows of the queries are those of a column of zeros, made of the ids: no shape travels between host and GPU.
        """
        code = _CODES[self.target.dtype]
        start, step = (op.Constant(value=ir.tensor(np.array(value, np.int32))) for value in (0, 1))
        keys = op.Range(start, total_sequence_length, step, _name="keys")
        # In 16 bits, distances beyond 2048 (float16) or 256 (bfloat16) would be rounded before they count.
        row = op.Mul(self._slopes[alibi], op.Cast(keys, to=1, _name="distance"), _name="alibi_row")
        row = row if code == 1 else op.Cast(row, to=code, _name="alibi_row_narrow")
        zeros = op.Gather(self._zeros(op, ids), op.Constant(value_int=0), axis=0, _name="zero_row")
        column = op.Unsqueeze(op.Cast(zeros, to=code, _name="zeros_as_float"), [0, 1, 3], _name="zero_column")
        return op.Add(row, column, _name="alibi")

    def _query_growth(self, op: Any, positions: Any, beta: float, period: int) -> Any:
        """1 + beta * ln(1 + floor(position / period))."""
        periods = op.Cast(op.Div(positions, op.Constant(value_int=period)), to=1, _name="periods")
        logarithm = op.Log(op.Add(periods, op.Constant(value_float=1.0)), _name="log_periods")
        growth = op.Add(op.Mul(logarithm, op.Constant(value_float=beta)), op.Constant(value_float=1.0))
        return op.Unsqueeze(op.Cast(growth, to=_CODES[self.target.dtype]), [2], _name="query_growth")

    def _rope_tables(self, op: Any, rope: Rope, number: int) -> tuple[Any, Any]:
        """cos and sin of position * frequency. ONNX Runtime folds them into constants when it loads the graph.

        A switching rope has the rows of its long table behind the `switch` rows of its short one.
        """
        context, code = self.decoder.context_length, _CODES[self.target.dtype]
        tables = self._turns(op, f"short_{number}", rope.switch or context, rope.factor)
        if rope.switch is not None:
            factor = rope.factor if rope.long_factor is None else rope.long_factor
            both = zip(tables, self._turns(op, f"long_{number}", context, factor), strict=True)
            tables = [op.Concat(*parts, axis=0, _name=f"both_{number}") for parts in both]
        cos, sin = (
            op.Cast(table, to=code, _name=f"{name}_{number}")
            for name, table in zip(("cos", "sin"), tables, strict=True)
        )
        return cos, sin

    def _turns(self, op: Any, name: str, positions: int, factor: float) -> list[Any]:
        """factor * cos and factor * sin of all angles, float32 `[positions, r/2]`."""
        rows = op.Range(0.0, float(positions), 1.0, _name=f"positions_{name}")
        column = op.Unsqueeze(rows, [1], _name=f"column_{name}")
        angles = op.Mul(column, getattr(self, name), _name=f"angles_{name}")
        scale = op.Constant(value_float=factor)
        return [op.Mul(op.Cos(angles), scale), op.Mul(op.Sin(angles), scale)]

    def _add_frequencies(self, rope: Rope, number: int) -> None:
        frequencies = {"short": rope.inverse_frequencies, "long": rope.long_inverse_frequencies}
        for kind, values in frequencies.items():
            if values:
                row = np.array(values, np.float32).reshape(1, -1)
                setattr(self, f"{kind}_{number}", constant(row, Target()))  # float32 on every target

    def _add_slopes(self, alibi: Alibi, number: int) -> Any:
        value = constant(np.array(alibi, np.float32).reshape(1, -1, 1, 1), Target())  # float32 on every target
        setattr(self, f"alibi_slopes_{number}", value)
        return value
