"""What lets positions see each other: attention in its forms, and recurrences in its place; with norms and ropes."""

from dataclasses import dataclass
from typing import Literal


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
    `long_inverse_frequencies` instead (LongRoPE, Ding et al. 2024), and `long_factor` where it is not the same.
    """

    inverse_frequencies: tuple[float, ...]
    factor: float = 1.0
    interleaved: bool = False
    switch: int | None = None
    long_inverse_frequencies: tuple[float, ...] = ()
    long_factor: float | None = None


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
class Latent:
    """Multi-head latent attention (DeepSeek-V2): all heads' keys and values are made from one cached latent.

    The latent is the one key/value head of `rank` channels, behind the rotating channels that all heads share.

    Args:
        rank: channels of the latent.
        nope: channels of each head's queries and keys that do not rotate.
        value: channels of each head's values.
        query_rank: width of the bottleneck that queries are projected through, if there is one.
        norm: of the latent and of the bottleneck.
        bias: of the projections to latent and bottleneck, and of the output.
    """

    rank: int
    nope: int
    value: int
    query_rank: int | None
    norm: Norm
    bias: bool = False


@dataclass(frozen=True)
class Attention:
    """Grouped-query attention; `window` None sees everything, W sees the last W positions, the query's own included.

    Args:
        scale: multiplies the dot products; None is 1/sqrt(D).
        softcap: s becomes cap * tanh(s / cap).
        sinks: each head has a learned logit in the softmax's denominator that attends to nothing.
        clip: bound on the absolute value of projected (and normed) queries, keys and values.
        alibi: slope per query head; slope * key position is added to the logits (Press et al. 2022).
        query_growth: (beta, period): queries are multiplied by 1 + beta * ln(1 + floor(position / period)).
        latent: how queries, keys and values are made, where the one key/value head is a latent.
        value_norm: norm of each value head.
        values_are_keys: values are the projected keys, before norm and rope.
        keys_of: the earlier layer whose keys and values are attended to, instead of own ones.
        output_gate: what was attended to is multiplied by a sigmoid that is projected beside queries, keys and values.
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
    latent: Latent | None = None
    value_norm: Norm | None = None
    values_are_keys: bool = False
    keys_of: int | None = None
    output_gate: bool = False


@dataclass(frozen=True)
class ShortConv:
    """Gated short convolution (LFM2): `out(c * conv(b * x))` of projections b, c, x; each channel by itself.

    Args:
        channels: H.
        kernel: positions that the convolution sees, its own included.
        bias: of the projections and the convolution.
    """

    channels: int
    kernel: int
    bias: bool

    @property
    def states(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of what is kept of a sequence: the last inputs of the convolution."""
        return ((self.channels, self.kernel - 1),)


@dataclass(frozen=True)
class DeltaNet:
    """Gated delta rule (Yang et al. 2024): queries read a matrix per head that keys and values are written into.

    Queries, keys and values pass a short convolution with SiLU; queries and keys have length 1.

    Args:
        key_heads, key_dim: of queries and keys.
        value_heads, value_dim: of values, of which several heads may share a key.
        kernel: positions that the convolution sees.
        norm: of each head's output, before its gate.
    """

    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int
    kernel: int
    norm: Norm

    @property
    def channels(self) -> int:
        """Of queries, keys and values together."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def states(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of what is kept of a sequence: the convolution's last inputs, and the matrices."""
        return (self.channels, self.kernel - 1), (self.value_heads, self.key_dim, self.value_dim)


@dataclass(frozen=True)
class Mamba:
    """State-space layer (Mamba 2, Dao and Gu 2024): `out(norm(y * silu(gate)))`.

    Per head and position S becomes exp(dt * A) S + dt * (x outer B), and y = S C + D * x; x, B and C pass a short
    convolution with SiLU; dt = softplus(dt + bias).

    Args:
        heads, head_dim: of x.
        groups, state: of B and C, which heads share.
        kernel: positions that the convolution sees.
        norm: of the gated output, over the heads of each group.
        bias: of the projections.
        conv_bias: of the convolution.
        time_limit: dt is clamped between these.
    """

    heads: int
    head_dim: int
    groups: int
    state: int
    kernel: int
    norm: Norm
    bias: bool = False
    conv_bias: bool = True
    time_limit: tuple[float, float] = (0.0, float("inf"))

    @property
    def channels(self) -> int:
        """Of x, B and C together."""
        return self.heads * self.head_dim + 2 * self.groups * self.state

    @property
    def states(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of what is kept of a sequence: the convolution's last inputs, and a matrix per head."""
        return (self.channels, self.kernel - 1), (self.heads, self.state, self.head_dim)


Recurrent = ShortConv | DeltaNet | Mamba
