"""`model_type: gemma3n_text`: streams by alternating updates, inputs for each layer, shared keys and values."""

from dataclasses import replace
from typing import Any

from runtime.errors import CheckpointError

from ..decoder import skeleton
from ..decoder.config import Config
from ..decoder.description import MLP, AltUp, Attention, Decoder, HeadNorm, Layer, Norm
from ..decoder.rope import read_rope
from ..decoder.sources import LAYER, SKELETON, Table, linear, norm, table
from .gemma4 import PER_LAYER, kv_shared_layers, per_layer_inputs

_ALTUP, _LAUREL = LAYER + "altup.", LAYER + "laurel."

WEIGHTS: Table = {
    **SKELETON,
    **PER_LAYER,
    **norm("post_attention", LAYER + "post_attention_layernorm"),
    **norm("pre_mlp", LAYER + "pre_feedforward_layernorm"),
    **norm("post_mlp", LAYER + "post_feedforward_layernorm"),
    **linear("q", LAYER + "self_attn.q_proj"),
    **linear("spread", "model.altup_projections.{i}"),
    **linear("gather", "model.altup_unembed_projections.{i}"),
    **norm("altup_norm", _ALTUP + "router_norm"),
    **linear("altup_router", _ALTUP + "modality_router"),
    **linear("altup_predict", _ALTUP + "prediction_coefs"),
    **linear("altup_correct", _ALTUP + "correction_coefs"),
    **linear("laurel_left", _LAUREL + "linear_left"),
    **linear("laurel_right", _LAUREL + "linear_right"),
    **norm("laurel_norm", _LAUREL + "post_laurel_norm"),
    **table(altup_scale=_ALTUP + "correct_output_scale"),
}


def describe(config: Config) -> Decoder:
    """The last layers see the keys and values of earlier ones; the first ones have sparse gates."""
    config.take("altup_coef_clip", float, None)  # of training
    plain, attentions = skeleton.rms(config), _attentions(config)
    mlps = _mlps(config, len(attentions))
    layers = [_layer(attention, mlp, plain) for attention, mlp in zip(attentions, mlps, strict=True)]
    inputs = per_layer_inputs(config, plain, mlps[0])
    if inputs is None:
        raise CheckpointError(f"{config.where}: hidden_size_per_layer_input must be at least 1 for gemma3n_text.")
    return skeleton.decoder(
        config, "gemma3n_text", layers, plain, tied=True, context=32768,
        embedding_scale=config.positive("hidden_size") ** 0.5,
        logit_softcap=config.take("final_logit_softcapping", float, 30.0),
        per_layer_inputs=inputs,
        altup=_altup(config),
    )  # fmt: skip


def _layer(attention: Attention, mlp: MLP, plain: Norm) -> Layer:
    return Layer(attention, mlp, plain, plain, post_attention=plain, post_mlp=plain)


def _altup(config: Config) -> AltUp:
    return AltUp(
        streams=config.positive("altup_num_inputs", 4),
        active=config.take("altup_active_idx", int, 0),
        scaled=config.take("altup_correct_scale", bool, True),
        laurel_rank=config.positive("laurel_rank", 64),
    )


def _attentions(config: Config) -> list[Attention]:
    bias, plain = config.take("attention_bias", bool, False), skeleton.rms(config)
    base = skeleton.attention(
        config, head_dim=256, rope=None, scale=1.0, qkv_bias=bias, output_bias=bias, qk_norm=HeadNorm(plain),
        value_norm=replace(plain, weight=False),
    )  # fmt: skip
    windows = skeleton.windows(config, skeleton.all_but_every(5), config.positive("sliding_window", 512))
    ropes = {full: _rope(config, base.head_dim, full) for full in (True, False)}
    lent = kv_shared_layers(config, windows, default=15)
    return [
        replace(base, window=window, rope=ropes[window is None], keys_of=lender)
        for window, lender in zip(windows, lent, strict=True)
    ]


def _rope(config: Config, head_dim: int, full: bool) -> Any:
    """Full layers turn by `rope_theta`, sliding ones by `rope_local_base_freq`, unless `rope_parameters` has both."""
    local, context = config.take("rope_local_base_freq", float, 10000.0), skeleton.context_length(config, 32768)
    if full or isinstance(config.values.get("rope_parameters"), dict):
        kind = "full_attention" if full else "sliding_attention"
        return read_rope(config, head_dim, context, 1e6 if full else local, kind=kind)
    return read_rope(Config({"rope_theta": local}), head_dim, context)


def _mlps(config: Config, count: int) -> list[MLP]:
    """`intermediate_size` and `activation_sparsity_pattern` may be one value, or one for each layer."""
    default = [0.95] * 10 + [0.0] * (count - 10) if count > 10 else 0.0
    sizes = _each(config, "intermediate_size", count, 16384)
    sparse = _each(config, "activation_sparsity_pattern", count, default)
    kind = config.choice("hidden_activation", skeleton.ACTIVATIONS, "gelu_pytorch_tanh")
    return [MLP(int(size), kind, sparsity=float(share)) for size, share in zip(sizes, sparse, strict=True)]


def _each(config: Config, key: str, count: int, default: Any) -> list[Any]:
    value: Any = config.take(key, object, default)
    values = value if isinstance(value, list) else [value] * count
    if len(values) != count or not all(isinstance(number, int | float) and number >= 0 for number in values):
        raise CheckpointError(
            f"{config.where}: {key} must be one number or one for each of {count} layers, got {value!r}."
        )
    return values
