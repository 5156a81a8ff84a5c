"""A decoder that reads whole texts and keeps no cache: hidden states, pooled to one row per text.

A row's bits do not depend on the padding behind it: sums run along the positions one by one, and rows never mix.
"""

from typing import Any

import numpy as np
from onnxscript.nn import Module

from ..decoder.description import Decoder
from ..decoder.sequence_output import Dense as DenseDescription
from ..decoder.sequence_output import Pooling, SequenceOutput
from ..targets.target import Target
from .decoder import Model
from .parameter import parameter

_FLOAT, _INT64 = 1, 7
_ACTIVATIONS = {"tanh": "Tanh", "relu": "Relu", "sigmoid": "Sigmoid"}


class Dense(Module):
    """float32 `[batch, in]` → `[batch, out]`."""

    def __init__(self, about: DenseDescription, target: Target) -> None:
        super().__init__(about.name)
        self.about, self.cast = about, target.dtype != "float32"
        self.weight = parameter((about.out_features, about.in_features), target)
        self.bias = parameter((about.out_features,), target) if about.bias else None

    def forward(self, op: Any, x: Any) -> Any:
        """Emit the product in float32 with the transposed matrix, the bias and the activation."""
        y = op.Gemm(x, self._float(op, self.weight), transB=1)
        y = y if self.bias is None else op.Add(y, self._float(op, self.bias), _name="bias_add")
        kind = _ACTIVATIONS.get(self.about.activation)
        return y if kind is None else getattr(op, kind)(y, _name=self.about.activation)

    def _float(self, op: Any, weight: Any) -> Any:
        return op.Cast(weight, to=_FLOAT, _name="float32") if self.cast else weight


class Pool(Module):
    """hidden `[batch, sequence, H]` → float32 `[batch, width]`."""

    def __init__(self, output: SequenceOutput, target: Target) -> None:
        super().__init__("pooling")
        self.output, self.cast = output, target.dtype != "float32"

    def forward(self, op: Any, hidden: Any, ids: Any, seqlens_k: Any) -> Any:
        """Emit each way to pool, side by side; `seqlens_k` int32 `[batch]` is the position of each row's last token."""
        last = op.Unsqueeze(op.Cast(seqlens_k, to=_INT64, _name="last"), [1], _name="last_column")
        emit = {"lasttoken": self._last, "cls": self._first, "max": self._max}
        parts = [
            emit[kind](op, hidden, ids, last) if kind in emit else self._mean(op, kind, hidden, ids, last)
            for kind in self.output.pooling
        ]
        return parts[0] if len(parts) == 1 else op.Concat(*parts, axis=1, _name="concat")

    def _float(self, op: Any, x: Any) -> Any:
        return op.Cast(x, to=_FLOAT, _name="float32") if self.cast else x

    def _last(self, op: Any, hidden: Any, _ids: Any, last: Any) -> Any:
        return self._float(op, op.GatherND(hidden, last, batch_dims=1, _name="lasttoken"))

    def _first(self, op: Any, hidden: Any, _ids: Any, _last: Any) -> Any:
        return self._float(op, op.Gather(hidden, op.Constant(value_int=0), axis=1, _name="cls"))

    def _max(self, op: Any, hidden: Any, ids: Any, last: Any) -> Any:
        inside = op.Unsqueeze(op.LessOrEqual(self._columns(op, ids), last), [2], _name="inside")
        lowest = op.Constant(value_float=float(np.finfo(np.float32).min))
        return op.ReduceMax(op.Where(inside, self._float(op, hidden), lowest), [1], keepdims=0, _name="max")

    def _mean(self, op: Any, kind: Pooling, hidden: Any, ids: Any, last: Any) -> Any:
        """(sum over the text) / divisor: the running sum at the last token, which padding behind it cannot change."""
        states, one = self._float(op, hidden), op.Constant(value_float=1.0)
        count = op.Add(op.Cast(last, to=_FLOAT, _name="last_as_float"), one, _name="count")
        divisor = count
        if kind == "weightedmean":
            numbers = op.Add(op.Cast(self._columns(op, ids), to=_FLOAT, _name="column"), one, _name="weights")
            states = op.Mul(states, op.Unsqueeze(numbers, [2]), _name="weighted")
            divisor = op.Div(op.Mul(count, op.Add(count, one)), op.Constant(value_float=2.0), _name="weight")
        elif kind == "mean_sqrt_len_tokens":
            divisor = op.Sqrt(count, _name="sqrt_count")
        running = op.CumSum(states, op.Constant(value_int=1), _name="running")
        return op.Div(op.GatherND(running, last, batch_dims=1, _name="sum"), divisor, _name=kind)

    def _columns(self, op: Any, ids: Any) -> Any:
        """0, 1, 2, … for each of the ids, counted as in `SharedInputs`."""
        one = op.Constant(value_ints=[1])
        ones = op.Add(op.Sub(ids, ids, _name="zeros"), one, _name="ones")
        return op.Sub(op.CumSum(ones, op.Constant(value_int=1), _name="counts"), one, _name="columns")


class SequenceEncoder(Module):
    """The decoder with pooling in place of a head."""

    def __init__(self, decoder: Decoder, output: SequenceOutput, target: Target) -> None:
        super().__init__("")
        self.output = output
        self.model = Model(decoder, target)
        self.pooling = Pool(output, target)
        self._dense = [Dense(about, target) for about in output.dense]
        for about, layer in zip(output.dense, self._dense, strict=True):
            setattr(self, about.name.replace(".", "_"), layer)
            layer._set_name(about.name)

    def forward(self, op: Any, ids: Any, lengths: tuple[Any, Any, Any]) -> Any:
        """Emit everything; `lengths` are the first three values of a Step. Returns float32 `[batch, width]`."""
        layers = len(self.model.decoder.layers)
        hidden, _ = self.model(op, ids, lengths, [(None, None)] * layers)
        rows = self.pooling(op, hidden, ids, lengths[0])
        for layer in self._dense:
            rows = layer(op, rows)
        return _normalized(op, rows) if self.output.normalize else rows


def _normalized(op: Any, rows: Any) -> Any:
    """x / max(|x|, 1e-12); the squares are summed by a product per row, whose bits do not depend on the batch."""
    squares = op.MatMul(op.Unsqueeze(rows, [1]), op.Unsqueeze(rows, [2]), _name="normalize.squares")
    norm = op.Sqrt(op.Squeeze(squares, [2], _name="normalize.sum"), _name="normalize.root")
    return op.Div(rows, op.Max(norm, op.Constant(value_float=1e-12), _name="normalize.norm"), _name="normalize")
