"""The decoder as data: what a family's config.json means, before any graph or weight exists.

Letters in shapes: H hidden size, I intermediate size, V vocabulary, N query heads, K key/value heads, D head_dim.
"""

from dataclasses import dataclass
from typing import Literal

Activation = Literal["silu"]


@dataclass(frozen=True)
class Rope:
    """Rotary embedding (Su et al. 2021): pair i of position p turns by `p * inverse_frequencies[i]`.

    The rotary width r is twice the number of frequencies; `factor` multiplies both cos and sin.
    Pairs are (i, i + r/2), or (2i, 2i + 1) when `interleaved`.
    """

    inverse_frequencies: tuple[float, ...]
    factor: float = 1.0
    interleaved: bool = False


@dataclass(frozen=True)
class Attention:
    """Grouped-query attention; `window` None sees everything, W sees the last W positions, the query's own included."""

    num_heads: int
    kv_heads: int
    head_dim: int
    rope: Rope | None
    window: int | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    scale: float | None = None  # None: 1/sqrt(head_dim)


@dataclass(frozen=True)
class MLP:
    """`down(activation(gate(x)) * up(x))`, gate and up stored as one matrix."""

    intermediate_size: int
    activation: Activation
    bias: bool = False


@dataclass(frozen=True)
class Layer:
    """One pre-norm decoder layer: x += attention(norm(x)); x += mlp(norm(x))."""

    attention: Attention
    mlp: MLP


@dataclass(frozen=True)
class Decoder:
    """A whole causal decoder. `tied_head`: the head multiplies with the embedding table."""

    model_type: str
    hidden_size: int
    vocab_size: int
    context_length: int
    norm_epsilon: float
    tied_head: bool
    layers: tuple[Layer, ...]
