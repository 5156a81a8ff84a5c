"""Alternating updates: several streams, of which each layer computes one and predicts the others (Gemma 3n)."""

import math
from typing import Any

import numpy as np
from onnxscript.nn import Module, ModuleList

from ..decoder import description
from ..targets.target import Target
from .attention.attention import Attention
from .linear import Linear
from .mlp import MLP
from .norm import Norm
from .parameter import constant, parameter, scalar
from .per_layer_inputs import LayerInput
from .step import Step


class Streams(Module):
    """Between one hidden state `[batch, sequence, H]` and n streams `[batch, sequence, n, H]`.

    The streams but the first are projections of it, rescaled to its magnitude; back likewise, to their mean.
    """

    def __init__(self, count: int, hidden_size: int, target: Target) -> None:
        super().__init__()
        self.count, self.target = count, target
        self.projections = ModuleList([Linear(hidden_size, hidden_size, False, target) for _ in range(count - 1)])

    def forward(self, op: Any, x: Any) -> Any:
        """Emit the streams of x `[batch, sequence, H]`, or the mean of x `[batch, sequence, n, H]`."""
        raise NotImplementedError

    def _rescaled(self, op: Any, x: Any, inputs: list[Any]) -> list[Any]:
        """x, and the projections of the inputs with x's magnitude."""
        magnitude = op.Sqrt(self._mean_square(op, x), _name="magnitude")
        floor = scalar(op, 1e-5, self.target)
        result = [x]
        for projection, other in zip(self.projections, inputs, strict=True):
            projected = projection(op, other)
            own = op.Sqrt(op.Max(self._mean_square(op, projected), floor, _name="floored"), _name="own_magnitude")
            scaled = op.Mul(projected, magnitude, _name="scaled")
            result.append(op.Div(scaled, own, _name="rescaled"))
        return result

    def _mean_square(self, op: Any, x: Any) -> Any:
        return op.ReduceMean(op.Mul(x, x, _name="squared"), [-1], keepdims=1, _name="mean_square")


class Spread(Streams):
    """One hidden state to n streams."""

    def forward(self, op: Any, x: Any) -> Any:
        """Emit x and its projections, side by side."""
        streams = self._rescaled(op, x, [x] * (self.count - 1))
        return op.Concat(*(op.Unsqueeze(stream, [2], _name="stream") for stream in streams), axis=2, _name="streams")


class Gather(Streams):
    """n streams to one hidden state."""

    def forward(self, op: Any, x: Any) -> Any:
        """Emit the mean of the first stream and the projections of the others."""
        parts = op.Split(x, axis=2, num_outputs=self.count, _outputs=self.count, _name="split")
        first, *others = (op.Squeeze(part, [2], _name="stream") for part in parts)
        total = op.Sum(*self._rescaled(op, first, others), _name="sum")
        return op.Mul(total, scalar(op, 1 / self.count, self.target), _name="mean")


class AltUp(Module):
    """A layer's predictions of all streams before it, and their corrections by what it computed."""

    def __init__(self, about: description.AltUp, norm: description.Norm, hidden_size: int, target: Target) -> None:
        super().__init__()
        count = about.streams
        self.about, self.target = about, target
        self.router_norm = Norm(norm, (hidden_size,), target)
        self.modality_router = Linear(hidden_size, count, False, target, scale=1 / hidden_size)
        self.prediction_coefs = Linear(count, count * count, False, target)
        self.correction_coefs = Linear(count, count, False, target)
        if about.scaled:
            self.correct_output_scale = parameter((hidden_size,), target)

    def forward(self, op: Any, streams: Any, active: Any = None, computed: Any = None) -> tuple[Any, Any]:
        """Emit predictions of streams `[batch, sequence, n, H]`, or the corrections of predictions.

        Args:
            op: the builder.
            streams: before the layer, or predicted.
            active: the prediction `[batch, sequence, H]` of the stream that was computed; None to predict.
            computed: what it was computed to be.

        Returns:
            streams, and of the active one the prediction, or the correction as the layer's own input is gated by it.
        """
        if active is None:
            return self._predict(op, streams)
        corrected = self._correct(op, streams, active, computed)
        first = self._active(op, corrected, "corrected_active")
        return corrected, op.Mul(first, self.correct_output_scale, _name="scaled") if self.about.scaled else first

    def _predict(self, op: Any, streams: Any) -> tuple[Any, Any]:
        count = self.about.streams
        coefficients = self.prediction_coefs(op, self._modalities(op, self._active(op, streams, "active")))
        matrix = op.Reshape(coefficients, op.Constant(value_ints=[0, 0, count, count]), _name="prediction_matrix")
        change = op.MatMul(matrix, streams, _name="predicted_change")
        predictions = op.Add(change, streams, _name="predictions")
        return predictions, self._active(op, predictions, "prediction")

    def _correct(self, op: Any, predictions: Any, active: Any, computed: Any) -> Any:
        """Each prediction moves by its own share of what the active one was wrong by."""
        shares = self.correction_coefs(op, self._modalities(op, computed))
        shares = op.Add(shares, scalar(op, 1.0, self.target), _name="shares")
        wrong = op.Unsqueeze(op.Sub(computed, active, _name="innovation"), [2], _name="innovation_row")
        change = op.Mul(wrong, op.Unsqueeze(shares, [3], _name="share_column"), _name="correction")
        return op.Add(change, predictions, _name="corrected")

    def _active(self, op: Any, streams: Any, name: str) -> Any:
        return op.Gather(streams, op.Constant(value_int=self.about.active), axis=2, _name=name)

    def _modalities(self, op: Any, x: Any) -> Any:
        return op.Tanh(self.modality_router(op, self.router_norm(op, x)), _name="modalities")


class Laurel(Module):
    """x + norm(right(left(x))) for x `[batch, sequence, H]`."""

    def __init__(self, rank: int, norm: description.Norm, hidden_size: int, target: Target) -> None:
        super().__init__()
        self.linear_left = Linear(hidden_size, rank, False, target)
        self.linear_right = Linear(rank, hidden_size, False, target)
        self.norm = Norm(norm, (hidden_size,), target)

    def forward(self, op: Any, x: Any) -> Any:
        """Emit the low-rank branch and its residual."""
        return op.Add(x, self.norm(op, self.linear_right(op, self.linear_left(op, x))), _name="sum")


class AltUpLayer(Module):
    """A decoder layer over streams `[batch, sequence, n, H]`, called like any other layer; it leaves no residual."""

    def __init__(self, decoder: description.Decoder, number: int, target: Target) -> None:
        super().__init__()
        layer, hidden, shape = decoder.layers[number], decoder.hidden_size, (decoder.hidden_size,)
        assert decoder.altup and decoder.per_layer_inputs and isinstance(layer.mlp, description.MLP)  # noqa: PT018
        assert layer.pre_attention and layer.post_attention and layer.pre_mlp and layer.post_mlp  # noqa: PT018
        self.about, self.number, self.target = decoder.altup, number, target
        self.altup = AltUp(decoder.altup, layer.pre_attention, hidden, target)
        self.laurel = Laurel(decoder.altup.laurel_rank, layer.pre_attention, hidden, target)
        self.self_attn = Attention(layer.attends, hidden, target)
        self.mlp = MLP(layer.mlp, hidden, target)
        self.input_layernorm = Norm(layer.pre_attention, shape, target)
        self.attention_output_layernorm = Norm(layer.post_attention, shape, target)
        self.post_attention_layernorm = Norm(layer.pre_mlp, shape, target)
        self.mlp_output_layernorm = Norm(layer.post_mlp, shape, target)
        self.per_layer_input = LayerInput(decoder.per_layer_inputs, hidden, target)
        others = np.ones((decoder.altup.streams, 1), np.float32)
        others[0] = 0
        self.others = constant(others, target)

    def forward(self, op: Any, streams: Any, residual: Any, step: Step, past: Any) -> tuple[Any, Any, Any]:
        """Emit prediction, computation of the active stream, correction, and the layer's input to the others."""
        assert residual is None
        predictions, active = self.altup(op, streams)
        computed, present = self._compute(op, active, step, past)
        corrected, first = self.altup(op, predictions, active, computed)
        addition = self.per_layer_input(op, first, step.layer_inputs[self.number])
        row = op.Mul(op.Unsqueeze(addition, [2], _name="input_row"), self.others, _name="input_of_others")
        return op.Add(corrected, row, _name="streams"), None, present

    def _compute(self, op: Any, x: Any, step: Step, past: Any) -> tuple[Any, Any]:
        normed = self.input_layernorm(op, x)
        attended, present = self.self_attn(op, normed, step, past)
        attended = op.Add(x, self.attention_output_layernorm(op, attended), _name="attended")
        both = op.Add(attended, self.laurel(op, normed), _name="with_laurel")
        middle = op.Mul(both, scalar(op, 1 / math.sqrt(2), self.target), _name="middle")
        output = self.mlp_output_layernorm(op, self.mlp(op, self.post_attention_layernorm(op, middle)))
        return op.Add(middle, output, _name="computed"), present
