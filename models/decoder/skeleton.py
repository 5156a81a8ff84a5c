"""What most configs share: sizes, windows, norms and activations under Llama's key names."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from runtime.errors import CheckpointError, UnsupportedError

from .config import Config
from .description import MLP, Activation, Attention, Decoder, Layer, MoE, Norm, Router
from .rope import read_rope

ACTIVATIONS: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "relu2": "relu2",
    "xielu": "xielu",
}


def context_length(config: Config, default: int = 2048) -> int:
    """How many positions the model was made for."""
    return config.positive("max_position_embeddings", default)


def rms(config: Config, key: str = "rms_norm_eps", default: float = 1e-6, offset: float = 0.0) -> Norm:
    """An RMS norm with the config's epsilon."""
    return Norm("rms", config.take(key, float, default), offset=offset)


def layer_norm(config: Config, key: str = "layer_norm_eps", default: float = 1e-5, **changes: Any) -> Norm:
    """A LayerNorm with weight and bias and the config's epsilon."""
    return replace(Norm("layer", config.take(key, float, default), bias=True), **changes)


def attention(
    config: Config, *, head_dim: int | None = None, theta: float = 10000.0, partial: float = 1.0,
    interleaved: bool = False, context: int = 2048, **changes: Any,
) -> Attention:  # fmt: skip
    """Attention with the config's rope; `changes` are fields of Attention, `head_dim` a default other than H/N."""
    hidden, heads = config.positive("hidden_size"), config.positive("num_attention_heads")
    size = config.positive("head_dim", head_dim) or hidden // heads
    if "rope" not in changes:
        rope = read_rope(config, size, context_length(config, context), theta, partial)
        changes["rope"] = replace(rope, interleaved=interleaved)
    kv_heads = config.positive("num_key_value_heads", heads)
    return Attention(heads, kv_heads, size, **changes)


def mlp(
    config: Config, activation: str = "silu", key: str = "hidden_act", size: str = "intermediate_size", **changes: Any
) -> MLP:
    """The feed-forward network; `activation` is the family's default, `size` the key of I."""
    kind = config.choice(key, ACTIVATIONS, activation)
    return replace(MLP(config.positive(size), kind), **changes)


def require(config: Config, fixed: Mapping[str, object]) -> None:
    """Keys that may be stated, but only as what the family always is."""
    for key, value in fixed.items():
        if config.take(key, object, value) != value:
            raise UnsupportedError(f"{config.where}: {key} is only supported as {value!r}, got {config.values[key]!r}.")


def windows(config: Config, rule: Callable[[int], bool], window: int | None) -> list[int | None]:
    """Each layer's window: by `layer_types` where the config has it, else where `rule(layer)` says sliding."""
    count = config.positive("num_hidden_layers")
    stated = config.take("layer_types", list, None)
    if stated is None:
        return [window if rule(i) else None for i in range(count)]
    kinds = {"full_attention": None, "sliding_attention": window}
    if len(stated) != count or any(kind not in kinds for kind in stated):
        raise CheckpointError(
            f"{config.where}: layer_types must name full_attention or sliding_attention for each of {count} layers, "
            f"got {stated!r}."
        )
    if window is None and "sliding_attention" in stated:
        raise CheckpointError(f"{config.where}: layer_types has sliding_attention, but sliding_window is not set.")
    return [kinds[kind] for kind in stated]


def layer_kinds(config: Config, accepted: Sequence[str], default: Sequence[str]) -> list[str]:
    """`layer_types`, one of the accepted for each layer; `default` where the config has none."""
    kinds: list[str] = config.take("layer_types", list, list(default))
    count = config.positive("num_hidden_layers")
    if len(kinds) != count or any(kind not in accepted for kind in kinds):
        raise CheckpointError(
            f"{config.where}: layer_types must name one of {', '.join(accepted)} for each of {count} layers, "
            f"got {kinds!r}."
        )
    return kinds


def layers(
    attention: Attention, mlp: MLP | MoE, norm: Norm, windows: Sequence[int | None], **changes: Any
) -> tuple[Layer, ...]:
    """Pre-norm layers that differ in their windows only."""
    return tuple(replace(Layer(replace(attention, window=window), mlp, norm, norm), **changes) for window in windows)


def mixed(layers: Sequence[Layer], moe: MoE, rule: Callable[[int], bool]) -> tuple[Layer, ...]:
    """The layers, with a mixture of experts where `rule(layer)` says so."""
    return tuple(replace(layer, mlp=moe) if rule(i) else layer for i, layer in enumerate(layers))


def router(config: Config, experts: str = "num_experts", top_k: str = "num_experts_per_tok", **changes: Any) -> Router:
    """Softmax over all experts, of which some are taken; `experts` and `top_k` are the names of the keys.

    transformers may write `experts` under another name that it holds for the same.
    """
    experts = next((key for key in (experts, "num_local_experts", "num_experts") if key in config.values), experts)
    counts = config.positive(experts), config.positive(top_k)
    try:
        return Router(*counts, **changes)
    except ValueError as error:
        raise CheckpointError(f"{config.where}: {error}; see {experts} and {top_k}.") from error


def corrected_moe(config: Config, scale: float = 1.0, groups: int = 1, shared: int = 1, normalize: bool = True) -> MoE:
    """DeepSeek-V3's mixture: sigmoids, corrected for the choice, within the best groups; shared experts as one."""
    require(config, {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_layer_freq": 1})
    moe = router(
        config, "n_routed_experts", scores="sigmoid", correction=True, group_score="top2",
        normalize=config.take("norm_topk_prob", bool, normalize),
        scale=config.take("routed_scaling_factor", float, scale),
        groups=(config.positive("n_group", groups), config.positive("topk_group", max(groups // 2, 1))),
    )  # fmt: skip
    return MoE(moe, mlp(config, size="moe_intermediate_size"), shared_experts(config, shared))


def shared_experts(config: Config, default: int = 1) -> MLP | None:
    """The `n_shared_experts` that every token passes: side by side they are one wider MLP."""
    count = config.take("n_shared_experts", int, default)
    expert = mlp(config, size="moe_intermediate_size")
    return replace(expert, intermediate_size=count * expert.intermediate_size) if count else None


def decoder(
    config: Config, model_type: str, layers: Sequence[Layer], norm: Norm, *, tied: bool = False, context: int = 2048,
    **changes: Any,
) -> Decoder:  # fmt: skip
    """The decoder around the layers; `tied` is the family's default."""
    return Decoder(
        model_type=model_type,
        hidden_size=config.positive("hidden_size"),
        vocab_size=config.positive("vocab_size"),
        context_length=context_length(config, context),
        tied_head=config.take("tie_word_embeddings", bool, tied),
        layers=tuple(layers),
        final_norm=norm,
        **changes,
    )


def never(_layer: int) -> bool:
    """The rule of families without sliding windows."""
    return False


def always(_layer: int) -> bool:
    """The rule of families whose every layer slides, when a window is set."""
    return True


def all_but_every(period: int) -> Callable[[int], bool]:
    """Sliding, except the last of every `period` layers."""
    return lambda layer: (layer + 1) % period != 0
