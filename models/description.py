"""The decoder as data: what a family's config.json means, before any graph or weight exists.

Letters in shapes: H hidden size, I intermediate size, V vocabulary, N query heads, K key/value heads, D head_dim.
"""

from dataclasses import dataclass
from typing import Literal

Activation = Literal["silu", "gelu", "gelu_tanh", "quick_gelu", "relu", "relu2"]


@dataclass(frozen=True)
class Norm:
    """RMS norm (Zhang and Sennrich 2019) or LayerNorm (Ba et al. 2016).

    `offset` is added to the stored weight: families that store `w` and multiply by `1 + w` have offset 1.
    Without `weight` the norm only scales.
    """

    kind: Literal["rms", "layer"]
    epsilon: float
    weight: bool = True
    bias: bool = False
    offset: float = 0.0


@dataclass(frozen=True)
class Rope:
    """Rotary embedding (Su et al. 2021): pair i of position p turns by `p * inverse_frequencies[i]`.

    The rotary width r is twice the number of frequencies; `factor` multiplies both cos and sin.
    Pairs are (i, i + r/2), or (2i, 2i + 1) when `interleaved`. Sequences of more than `switch` tokens use
    `long_inverse_frequencies` instead (LongRoPE, Ding et al. 2024).
    """

    inverse_frequencies: tuple[float, ...]
    factor: float = 1.0
    interleaved: bool = False
    switch: int | None = None
    long_inverse_frequencies: tuple[float, ...] = ()


@dataclass(frozen=True)
class HeadNorm:
    """Norm of queries and keys before their product.

    `over`: "head" normalises each head's D channels with one shared weight `[D]`; "heads" likewise, with a weight of
    its own for each head; "all" normalises the N*D (K*D) channels of a token together.
    """

    norm: Norm
    over: Literal["head", "heads", "all"] = "head"
    after_rope: bool = False


@dataclass(frozen=True)
class Attention:
    """Grouped-query attention; `window` None sees everything, W sees the last W positions, the query's own included.

    Args:
        scale: multiplies the dot products; None is 1/sqrt(D).
        softcap: s becomes cap * tanh(s / cap).
        sinks: each head has a learned logit in the softmax's denominator that attends to nothing.
        clip: bound on the absolute value of projected queries, keys and values.
        alibi: slope per query head; slope * key position is added to the logits (Press et al. 2022).
        query_growth: (beta, period): queries are multiplied by 1 + beta * ln(1 + floor(position / period)).
    """

    num_heads: int
    kv_heads: int
    head_dim: int
    rope: Rope | None
    window: int | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    scale: float | None = None
    softcap: float | None = None
    sinks: bool = False
    clip: float | None = None
    qk_norm: HeadNorm | None = None
    alibi: tuple[float, ...] | None = None
    query_growth: tuple[float, int] | None = None


@dataclass(frozen=True)
class MLP:
    """Gated: `down(activation(gate(x)) * up(x))`, gate and up stored as one matrix. Else `down(activation(up(x)))`."""

    intermediate_size: int
    activation: Activation
    bias: bool = False
    gated: bool = True


@dataclass(frozen=True)
class Layer:
    """One decoder layer; norms that are None do nothing.

    sequential: x += post_attention(attention(pre_attention(x))); x += post_mlp(mlp(pre_mlp(x)))
    parallel:   x += attention(pre_attention(x)) + mlp(pre_mlp(x)), with pre_mlp None meaning the same normed x
    post_norm:  x = pre_attention(x + attention(x)); x = pre_mlp(x + mlp(x)), as the first transformers did

    `residual_scale` multiplies both branches. `residual_from_norm`: the normed x is also what is added to.
    """

    attention: Attention
    mlp: MLP
    pre_attention: Norm | None
    pre_mlp: Norm | None
    post_attention: Norm | None = None
    post_mlp: Norm | None = None
    topology: Literal["sequential", "parallel", "post_norm"] = "sequential"
    residual_scale: float = 1.0
    residual_from_norm: bool = False


@dataclass(frozen=True)
class LearnedPositions:
    """A table of position vectors, added to the embedding: row `position + offset`."""

    rows: int
    offset: int = 0


@dataclass(frozen=True)
class Decoder:
    """A whole causal decoder. `tied_head`: the head multiplies with the embedding table.

    `embedding_width` differs from H where the table is projected to H and back before the head.
    Logits are `softcap(head(logit_scale * hidden) + bias)`.
    """

    model_type: str
    hidden_size: int
    vocab_size: int
    context_length: int
    tied_head: bool
    layers: tuple[Layer, ...]
    final_norm: Norm | None
    embedding_width: int | None = None
    embedding_scale: float = 1.0
    embedding_norm: Norm | None = None
    positions: LearnedPositions | None = None
    head_bias: bool = False
    logit_scale: float = 1.0
    logit_softcap: float | None = None
