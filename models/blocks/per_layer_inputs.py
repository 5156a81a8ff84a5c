"""A small input of each layer's own, made from the token and its embedding (Gemma 3n)."""

from typing import Any

from onnxscript.nn import Module

from ..decoder.description import Decoder
from ..decoder.description import PerLayerInputs as Description
from ..targets.target import Target
from .embedding import Embedding
from .linear import Linear
from .mlp import ACTIVATIONS
from .norm import Norm
from .parameter import scalar


class PerLayerInputs(Module):
    """ids `[batch, sequence]` and their embedding `[batch, sequence, H]` → a list of `[batch, sequence, width]`."""

    def __init__(self, decoder: Decoder, target: Target) -> None:
        super().__init__()
        assert decoder.per_layer_inputs is not None
        self.decoder, self.about, self.target = decoder, decoder.per_layer_inputs, target
        wide, hidden = len(decoder.layers) * self.about.width, decoder.hidden_size
        self.embed_tokens = Embedding(self.about.rows, wide, target)
        self.projection = Linear(hidden, wide, False, target, scale=hidden**-0.5)
        self.norm = Norm(self.about.norm, (self.about.width,), target)

    def forward(self, op: Any, ids: Any, x: Any) -> list[Any]:
        """Emit (norm(projection(x)) + embedding) / sqrt(2), and cut it into layers."""
        about, count = self.about, len(self.decoder.layers)
        if about.rows < self.decoder.vocab_size:  # tokens without a row take the first one
            known = op.Less(ids, op.Constant(value_int=about.rows), _name="known")
            ids = op.Mul(ids, op.Cast(known, to=7, _name="known_ids"), _name="rows")
        embedded = op.Mul(self.embed_tokens(op, ids), scalar(op, about.width**0.5, self.target), _name="embedded")
        projected = op.Reshape(
            self.projection(op, x), op.Constant(value_ints=[0, 0, count, about.width]), _name="by_layer"
        )
        flat = op.Reshape(self.norm(op, projected), op.Constant(value_ints=[0, 0, count * about.width]), _name="flat")
        total = op.Mul(op.Add(flat, embedded, _name="sum"), scalar(op, 2**-0.5, self.target), _name="inputs")
        parts = op.Split(total, axis=-1, num_outputs=count, _outputs=count, _name="split")
        return [parts] if count == 1 else list(parts)


class LayerInput(Module):
    """x `[batch, sequence, H]` and the layer's input `[batch, sequence, width]` → what is to be added to x."""

    def __init__(self, about: Description, hidden_size: int, target: Target) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[about.activation]
        self.gate = Linear(hidden_size, about.width, False, target)
        self.projection = Linear(about.width, hidden_size, False, target)
        self.norm = Norm(about.norm, (hidden_size,), target)

    def forward(self, op: Any, x: Any, layer_input: Any) -> Any:
        """Emit norm(projection(activation(gate(x)) * input))."""
        gated = op.Mul(self.activation(op, self.gate(op, x)), layer_input, _name="gated")
        return self.norm(op, self.projection(op, gated))
