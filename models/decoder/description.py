"""The decoder as data: what a family's config.json means, before any graph or weight exists.

Letters in shapes: H hidden size, I intermediate size, V vocabulary, N query heads, K key/value heads, D head_dim.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from .mixers import Attention, DeltaNet, HeadNorm, Latent, Mamba, Norm, Recurrent, Rope, ShortConv

__all__ = [
    "MLP", "Activation", "AltUp", "Attention", "Beside", "Decoder", "DeltaNet", "HeadNorm", "Latent", "Layer",
    "LearnedPositions", "Mamba", "MoE", "Norm", "PerLayerInputs", "Recurrent", "Rope", "Router", "ShortConv",
]  # fmt: skip

Activation = Literal["silu", "gelu", "gelu_tanh", "quick_gelu", "relu", "relu2", "xielu"]


@dataclass(frozen=True)
class MLP:
    """Gated: `down(activation(gate(x)) * up(x))`, gate and up stored as one matrix. Else `down(activation(up(x)))`.

    With a `sparsity`, gates below that share of a normal distribution become 0, and the others the excess.
    """

    intermediate_size: int
    activation: Activation
    bias: bool = False
    gated: bool = True
    sparsity: float = 0.0


@dataclass(frozen=True)
class Router:
    """Which `top_k` of `experts` a token goes to, and with what weights.

    Scores are the softmax or the sigmoid of the router's logits; the best by `scores + correction` are taken.

    Args:
        normalize: the weights taken are divided by their sum.
        scale: multiplies the weights.
        bias: the router is a linear layer with a bias.
        correction: a learned term per expert that helps to choose and is no part of the weights (Wang et al. 2024).
        groups: (groups, kept): experts lie in equal groups, of which only the best few are chosen from.
        group_score: what makes a group good: its best expert, or the sum of its best two.
        norm: of the router's input; its stored weight is multiplied by 1/sqrt(H).
        expert_scale: the weights, after all else, are multiplied by a learned number per expert.
        jitter: the sparse mixer's (Liu et al. 2023) tolerance: the weight of the best expert, then of the next, is
            its softmax among the experts whose logits are within 2 * jitter of it, relatively.
    """

    experts: int
    top_k: int
    scores: Literal["softmax", "sigmoid"] = "softmax"
    normalize: bool = True
    scale: float = 1.0
    bias: bool = False
    correction: bool = False
    groups: tuple[int, int] = (1, 1)
    group_score: Literal["max", "top2"] = "max"
    jitter: float | None = None
    norm: Norm | None = None
    expert_scale: bool = False

    def __post_init__(self) -> None:
        count, kept = self.groups
        if not 0 < self.top_k <= self.experts or self.experts % count or not 0 < kept <= count:
            raise ValueError(f"{self.top_k} of {self.experts} experts in {count} groups, {kept} kept, is impossible")
        if self.top_k > kept * (self.experts // count):
            raise ValueError(
                f"{kept} groups of {self.experts // count} experts have fewer than the {self.top_k} to take"
            )

    @property
    def plain(self) -> bool:
        """Whether the weights are a softmax over all experts, of which the best are taken."""
        return self.scores == "softmax" and self.groups[0] == 1 and not self.correction and self.jitter is None


@dataclass(frozen=True)
class MoE:
    """Mixture of experts (Shazeer et al. 2017): the weighted sum of a few gated MLPs, chosen for each token.

    Args:
        expert: one expert, of which there are `router.experts`.
        shared: an MLP that every token passes too; with `shared_gate` its output is multiplied by a learned sigmoid.
        alpha, beta, limit: an expert's gating is `gate * sigmoid(alpha * gate) * (up + beta)`, with gate and |up|
            at most `limit`.
        scale: multiplies the sum of experts and shared MLP.
    """

    router: Router
    expert: MLP
    shared: MLP | None = None
    shared_gate: bool = False
    alpha: float = 1.0
    beta: float = 0.0
    limit: float | None = None
    scale: float = 1.0


@dataclass(frozen=True)
class Beside:
    """Experts beside an MLP: norm(mlp(pre_mlp(x))) + norm(experts(norm(x))), three norms of a kind; x is routed."""

    moe: MoE
    norm: Norm


@dataclass(frozen=True)
class PerLayerInputs:
    """An input of `width` channels for each layer: a second embedding, plus a projection of the first one, normed.

    After its MLP a layer does x += norm(project(activation(gate(x)) * input)).
    """

    width: int
    rows: int
    activation: Activation
    norm: Norm


@dataclass(frozen=True)
class AltUp:
    """Alternating updates (Baykal et al. 2023): a layer computes one of several streams and predicts the others.

    Args:
        streams: how many.
        active: the one that is computed.
        scaled: what the layer's input gets of the active stream is multiplied by a learned vector.
        laurel_rank: width of the learned low-rank residual beside attention (Menghani et al. 2024).
    """

    streams: int
    active: int
    scaled: bool
    laurel_rank: int


@dataclass(frozen=True)
class Layer:
    """One decoder layer; norms that are None do nothing. In place of attention it may have a recurrence.

    sequential: x += post_attention(attention(pre_attention(x))); x += post_mlp(mlp(pre_mlp(x)))
    parallel:   x += attention(pre_attention(x)) + mlp(pre_mlp(x)), with pre_mlp None meaning the same normed x
    post_norm:  x = pre_attention(x + attention(x)); x = pre_mlp(x + mlp(x)), as the first transformers did

    `residual_scale` multiplies both branches. `residual_from_norm`: the normed x is also what is added to.
    `output_scale`: a learned number multiplies the layer's output. `beside`: what is added to the MLP's output.
    """

    attention: Attention | Recurrent
    mlp: MLP | MoE
    pre_attention: Norm | None
    pre_mlp: Norm | None
    post_attention: Norm | None = None
    post_mlp: Norm | None = None
    topology: Literal["sequential", "parallel", "post_norm"] = "sequential"
    residual_scale: float = 1.0
    residual_from_norm: bool = False
    output_scale: bool = False
    beside: Beside | None = None

    @property
    def attends(self) -> Attention:
        """The attention of a layer that is known to have one."""
        assert isinstance(self.attention, Attention)
        return self.attention


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
    per_layer_inputs: PerLayerInputs | None = None
    altup: AltUp | None = None

    @property
    def caching(self) -> Mapping[int, Attention]:
        """The layers with keys and values of their own."""
        attentions = {i: layer.attention for i, layer in enumerate(self.layers)}
        return {i: a for i, a in attentions.items() if isinstance(a, Attention) and a.keys_of is None}

    @property
    def recurrent(self) -> Mapping[int, Recurrent]:
        """The layers with a recurrence, which keep a state of fixed size."""
        attentions = {i: layer.attention for i, layer in enumerate(self.layers)}
        return {i: a for i, a in attentions.items() if not isinstance(a, Attention)}
