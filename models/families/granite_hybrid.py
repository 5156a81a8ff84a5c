"""`model_type: granitemoehybrid`: Granite 4; state-space layers with some attention, experts or none."""

from dataclasses import replace

from runtime.errors import CheckpointError

from ..decoder import skeleton
from ..decoder.config import Config
from ..decoder.description import MLP, Attention, Decoder, Layer, Mamba, MoE
from ..decoder.sources import LAYER, Table, linear, table
from . import granite_moe

_MAMBA = LAYER + "mamba."

WEIGHTS: Table = {
    **granite_moe.WEIGHTS,
    **linear("gate_up", LAYER + "shared_mlp.input_linear"),
    **linear("down", LAYER + "shared_mlp.output_linear"),
    **linear("mamba_in", _MAMBA + "in_proj"),
    **linear("mamba_conv", _MAMBA + "conv1d"),
    **linear("mamba_out", _MAMBA + "out_proj"),
    **table(
        mamba_norm_weight=_MAMBA + "norm.weight",
        mamba_dt_bias=_MAMBA + "dt_bias",
        mamba_a_log=_MAMBA + "A_log",
        mamba_d=_MAMBA + "D",
    ),
}

# As released configs, and as transformers, call the two kinds of layers.
_KINDS = {"attention": "attention", "full_attention": "attention", "mamba": "mamba", "linear_attention": "mamba"}


def describe(config: Config) -> Decoder:
    """Layers attend where `layer_types` says so, without rope unless `position_embedding_type` is rope."""
    config.take("mamba_chunk_size", int, None)  # of the reference's algorithm
    norm = skeleton.rms(config)
    mixers: dict[str, Attention | Mamba] = {"attention": _attention(config), "mamba": _mamba(config)}
    residual, mlp = config.take("residual_multiplier", float, 1.0), _mlp(config)
    count = config.positive("num_hidden_layers")
    kinds = [_KINDS[kind] for kind in skeleton.layer_kinds(config, tuple(_KINDS), ["mamba"] * count)]
    if "attention" not in kinds:
        raise CheckpointError(f"{config.where}: layer_types has no attention, but a bundle needs a KV cache.")
    layers = [Layer(mixers[kind], mlp, norm, norm, residual_scale=residual) for kind in kinds]
    return skeleton.decoder(
        config, "granitemoehybrid", layers, norm,
        embedding_scale=config.take("embedding_multiplier", float, 1.0),
        logit_scale=1 / config.take("logits_scaling", float, 1.0),
    )  # fmt: skip


def _attention(config: Config) -> Attention:
    bias = config.take("attention_bias", bool, False)
    attention = skeleton.attention(
        config, qkv_bias=bias, output_bias=bias, scale=config.take("attention_multiplier", float, 1.0)
    )
    roped = config.choice("position_embedding_type", {"rope": True, "nope": False}, "nope")
    return attention if roped else replace(attention, rope=None)


def _mamba(config: Config) -> Mamba:
    skeleton.require(config, {"hidden_act": "silu"})  # of the convolution
    heads = config.positive("mamba_n_heads", 128)
    inner = config.positive("mamba_expand", 2) * config.positive("hidden_size")
    stated = config.take("mamba_d_head", object, "auto")
    if inner % heads or stated not in ("auto", inner // heads):
        raise CheckpointError(
            f"{config.where}: mamba_n_heads {heads} of mamba_d_head {stated} are not {inner} channels."
        )
    return Mamba(
        heads=heads,
        head_dim=inner // heads,
        groups=config.positive("mamba_n_groups", 1),
        state=config.positive("mamba_d_state", 256),
        kernel=config.positive("mamba_d_conv", 4),
        norm=skeleton.rms(config),
        bias=config.take("mamba_proj_bias", bool, False),
        conv_bias=config.take("mamba_conv_bias", bool, True),
        time_limit=_time_limit(config),
    )


def _time_limit(config: Config) -> tuple[float, float]:
    """Infinity may be spelled as JSON allows."""
    stated = config.take("time_step_limit", list, [0.0, float("inf")])
    try:
        low, high = (float(value["__float__"] if isinstance(value, dict) else value) for value in stated)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{config.where}: time_step_limit must be two numbers, got {stated!r}.") from error
    return low, high


def _mlp(config: Config) -> MLP | MoE:
    """Without experts, what would be the shared one is all there is."""
    shared = skeleton.mlp(config, size="shared_intermediate_size")
    expert = skeleton.mlp(config)
    if config.take("num_local_experts", int, 8) == 0:
        config.take("num_experts_per_tok", int, None)
        return shared
    return MoE(skeleton.router(config, "num_local_experts"), expert, shared)
