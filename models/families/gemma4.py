"""`model_type: gemma4_text`: Gemma 3's block with normed values, wider full layers, and inputs for each layer."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from runtime.errors import CheckpointError, UnsupportedError

from ..decoder import skeleton
from ..decoder.config import Config
from ..decoder.description import MLP, Attention, Beside, Decoder, HeadNorm, Layer, MoE, Norm, PerLayerInputs
from ..decoder.rope import read_rope
from ..decoder.sources import LAYER, SKELETON, UNUSED, Source, Table, linear, norm, table

_ATTN = LAYER + "self_attn."

PER_LAYER: Table = {
    **linear("per_layer_embed", "model.embed_tokens_per_layer"),
    **linear("per_layer_projection", "model.per_layer_model_projection"),
    **norm("per_layer_norm", "model.per_layer_projection_norm"),
    **linear("input_gate", LAYER + "per_layer_input_gate"),
    **linear("input_projection", LAYER + "per_layer_projection"),
    **norm("input_norm", LAYER + "post_per_layer_input_norm"),
    # Layers that see another's keys and values may come with weights for their own.
    UNUSED: Source(
        tuple(_ATTN + name for name in ("k_proj.weight", "v_proj.weight", "k_norm.weight", "v_norm.weight"))
    ),
}

WEIGHTS: Table = {
    **SKELETON,
    **norm("post_attention", LAYER + "post_attention_layernorm"),
    **norm("pre_mlp", LAYER + "pre_feedforward_layernorm"),
    **norm("post_mlp", LAYER + "post_feedforward_layernorm"),
    **linear("q", _ATTN + "q_proj"),
    **linear("qk", _ATTN + "q_proj", _ATTN + "k_proj"),
    **PER_LAYER,
    **norm("beside_pre_norm", LAYER + "pre_feedforward_layernorm_2"),
    **norm("beside_post_norm", LAYER + "post_feedforward_layernorm_2"),
    **norm("beside_mlp_norm", LAYER + "post_feedforward_layernorm_1"),
    **linear("beside_router", LAYER + "router.proj"),
    **table(
        layer_scalar=LAYER + "layer_scalar",
        beside_router_norm_weight=LAYER + "router.scale",
        beside_expert_scale=LAYER + "router.per_expert_scale",
        beside_gate_up_weight=LAYER + "experts.gate_up_proj",
        beside_down_weight=LAYER + "experts.down_proj",
    ),
}

_ROPES = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
}


def describe(config: Config) -> Decoder:
    """Every layer's output is multiplied by a stored number."""
    plain, attentions = skeleton.rms(config), _attentions(config)
    wide = config.take("use_double_wide_mlp", bool, False)
    mlp = skeleton.mlp(config, "gelu_pytorch_tanh", "hidden_activation")
    beside = _beside(config, plain)
    layers = [replace(_layer(attention, mlp, plain, wide), beside=beside) for attention in attentions]
    return skeleton.decoder(
        config, "gemma4_text", layers, plain, tied=True, context=131072,
        embedding_scale=config.positive("hidden_size") ** 0.5,
        logit_softcap=config.take("final_logit_softcapping", float, None),
        per_layer_inputs=per_layer_inputs(config, plain, mlp),
    )  # fmt: skip


def _layer(attention: Attention, mlp: MLP, plain: Norm, wide: bool) -> Layer:
    """Layers that see another's keys may have twice the inner width."""
    if wide and attention.keys_of is not None:
        mlp = replace(mlp, intermediate_size=2 * mlp.intermediate_size)
    return Layer(attention, mlp, plain, plain, post_attention=plain, post_mlp=plain, output_scale=True)


def _beside(config: Config, plain: Norm) -> Beside | None:
    """Experts in every layer, or in none."""
    if not config.take("enable_moe_block", bool, False):
        for of_experts in ("num_experts", "top_k_experts", "moe_intermediate_size"):
            config.take(of_experts, int, None)
        return None
    router = skeleton.router(config, top_k="top_k_experts", norm=plain, expert_scale=True)
    expert = skeleton.mlp(config, "gelu_pytorch_tanh", "hidden_activation", "moe_intermediate_size")
    return Beside(MoE(router, expert), plain)


def per_layer_inputs(config: Config, plain: Norm, mlp: MLP) -> PerLayerInputs | None:
    """None if `hidden_size_per_layer_input` is 0."""
    width = config.take("hidden_size_per_layer_input", int, 256)
    rows = config.positive("vocab_size_per_layer_input", 262144)
    return PerLayerInputs(width, rows, mlp.activation, plain) if width else None


def kv_shared_layers(config: Config, windows: list[int | None], default: int = 0) -> list[int | None]:
    """For each of the last `num_kv_shared_layers` layers the last earlier one of its kind, whose keys it sees."""
    count = len(windows)
    first = count - config.take("num_kv_shared_layers", int, default)
    last = {window is None: i for i, window in enumerate(windows[:first])}
    missing = {window is None for window in windows[first:]} - set(last)
    if first < 0 or missing:
        raise CheckpointError(f"{config.where}: num_kv_shared_layers {count - first} leaves no layer to share with.")
    return [None if i < first else last[window is None] for i, window in enumerate(windows)]


def _attentions(config: Config) -> list[Attention]:
    if config.take("use_bidirectional_attention", str, None) == "all":
        raise UnsupportedError(f"{config.where}: use_bidirectional_attention 'all' is not a causal model.")
    bias, plain = config.take("attention_bias", bool, False), skeleton.rms(config)
    base = skeleton.attention(
        config, head_dim=256, rope=None, scale=1.0, qkv_bias=bias, output_bias=bias, qk_norm=HeadNorm(plain),
        value_norm=replace(plain, weight=False),
    )  # fmt: skip
    windows = _windows(config)
    kinds = {True: _full(config, base), False: base}
    ropes = {full: _rope(config, kinds[full].head_dim, full) for full in (True, False)}
    return [
        replace(kinds[window is None], window=window, rope=ropes[window is None], keys_of=lender)
        for window, lender in zip(windows, kv_shared_layers(config, windows), strict=True)
    ]


def _windows(config: Config) -> list[int | None]:
    """The last layer is full, whatever the config says."""
    windows = skeleton.windows(config, skeleton.all_but_every(6), config.positive("sliding_window", 512))
    return [*windows[:-1], None]


def _full(config: Config, base: Attention) -> Attention:
    """Full layers have wider heads, and where keys are values too, other key/value heads."""
    same = config.take("attention_k_eq_v", bool, False)
    changes: Mapping[str, Any] = next(iter(config.take("per_layer_config", dict, {}).values()), {})
    size = config.positive("global_head_dim", changes.get("head_dim", 512))
    heads = config.positive("num_global_key_value_heads", changes.get("num_key_value_heads"))
    return replace(base, head_dim=size, kv_heads=heads if same and heads else base.kv_heads, values_are_keys=same)


def _rope(config: Config, head_dim: int, full: bool) -> Any:
    kind = "full_attention" if full else "sliding_attention"
    stated = config.take("rope_parameters", dict, None) or _ROPES
    return read_rope(Config({"rope_parameters": stated}), head_dim, skeleton.context_length(config, 131072), kind=kind)
