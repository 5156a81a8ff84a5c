"""`model_type: gpt_oss`: sinks in every softmax, alternating windows, and experts with clamped gates and biases."""

import numpy as np

from runtime.errors import UnsupportedError

from ..decoder import skeleton
from ..decoder.config import Config
from ..decoder.description import Decoder, Layer, MoE, Rope
from ..decoder.rope import read_rope
from ..decoder.sources import LAYER, SKELETON, Index, Source, linear, table

_MOE = LAYER + "mlp."


def _alternating(layer: Layer) -> Index:
    """Stored gate, up, gate, up, ..."""
    assert isinstance(layer.mlp, MoE)
    rows = np.arange(2 * layer.mlp.expert.intermediate_size)
    return np.concatenate([rows[::2], rows[1::2]])


WEIGHTS = {
    **SKELETON,
    **linear("router", _MOE + "router"),
    **table(
        sinks=LAYER + "self_attn.sinks",
        experts_gate_up_weight=Source((_MOE + "experts.gate_up_proj",), "in_out", _alternating),
        experts_gate_up_bias=Source((_MOE + "experts.gate_up_proj_bias",), order=_alternating),
        experts_down_weight=Source((_MOE + "experts.down_proj",), "in_out"),
        experts_down_bias=Source((_MOE + "experts.down_proj_bias",)),
    ),
}

_ROPE = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


def describe(config: Config) -> Decoder:
    """Even layers slide. `experts_per_token` and `initial_context_length` repeat other keys."""
    for repeated in ("experts_per_token", "initial_context_length"):
        config.take(repeated, int, None)
    bias, norm = config.take("attention_bias", bool, True), skeleton.rms(config, default=1e-5)
    attention = skeleton.attention(config, head_dim=64, rope=_rope(config), qkv_bias=bias, output_bias=bias, sinks=True)
    windows = skeleton.windows(config, lambda i: i % 2 == 0, config.positive("sliding_window", 128))
    layers = skeleton.layers(attention, _moe(config), norm, windows)
    return skeleton.decoder(config, "gpt_oss", layers, norm, context=131072)


def _rope(config: Config) -> Rope:
    stated = config.values.get("rope_parameters") or config.values.get("rope_scaling")
    size, context = config.positive("head_dim", 64), skeleton.context_length(config, 131072)
    return read_rope(config if stated else Config({"rope_parameters": _ROPE}), size, context, 150000.0)


def _moe(config: Config) -> MoE:
    expert = skeleton.mlp(config, bias=True)
    if expert.activation != "silu":
        raise UnsupportedError(f"{config.where}: hidden_act must be silu for gpt_oss, got {expert.activation!r}.")
    return MoE(
        skeleton.router(config, "num_local_experts", bias=True), expert,
        alpha=config.take("swiglu_alpha", float, 1.702), beta=1.0, limit=config.take("swiglu_limit", float, 7.0),
    )  # fmt: skip
