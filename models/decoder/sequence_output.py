"""What a model that reads whole texts gives for each: a vector or scores, described as data."""

from dataclasses import dataclass
from typing import Literal

Pooling = Literal["lasttoken", "mean", "cls", "max", "mean_sqrt_len_tokens", "weightedmean"]
DenseActivation = Literal["identity", "tanh", "relu", "sigmoid"]
OutputRole = Literal["embeddings", "scores"]


@dataclass(frozen=True)
class Dense:
    """activation(x @ weight.T + bias) on pooled vectors; `name` is the module's, as its weights are called."""

    name: str
    in_features: int
    out_features: int
    bias: bool
    activation: DenseActivation = "identity"


@dataclass(frozen=True)
class SequenceOutput:
    """Hidden states of a text to one row of numbers: pooled, through dense layers, normalized.

    Args:
        role: the graph's output.
        pooling: how the positions become one, by the names of sentence-transformers; several lie side by side.
            "weightedmean" weighs position i, counted from 1, with i.
        dense: layers behind it, in their order.
        normalize: divide by the L2 norm, of at least 1e-12.
    """

    role: OutputRole
    pooling: tuple[Pooling, ...]
    dense: tuple[Dense, ...] = ()
    normalize: bool = False

    def width(self, hidden_size: int) -> int:
        """Numbers per text."""
        return self.dense[-1].out_features if self.dense else len(self.pooling) * hidden_size
