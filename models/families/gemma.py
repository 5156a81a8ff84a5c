"""Gemma 1 to 3, text, and VaultGemma: scaled embeddings, norms of 1 + w, gated tanh-GELU.

Since Gemma 2 there are norms around both branches; VaultGemma is Gemma 2 without those behind.
"""

from dataclasses import replace

from ..decoder import skeleton
from ..decoder.config import Config
from ..decoder.description import Attention, Decoder, HeadNorm, Norm, Rope
from ..decoder.rope import read_rope
from ..decoder.sources import LAYER, SKELETON, Table, norm

_CAPPED = ("gemma2", "vaultgemma")
_AROUND = {
    **norm("post_attention", LAYER + "post_attention_layernorm"),
    **norm("pre_mlp", LAYER + "pre_feedforward_layernorm"),
    **norm("post_mlp", LAYER + "post_feedforward_layernorm"),
}


def weights(model_type: str, _config: Config) -> Table:
    """Gemma 1 has Llama's names; later ones name four norms a layer."""
    around: Table = {} if model_type == "gemma" else _AROUND
    return {**SKELETON, **around}


def describe(config: Config) -> Decoder:
    """The decoder of any of the generations."""
    model_type = config.take("model_type", str)
    config.take("use_bidirectional_attention", bool, False)
    config.take("sliding_window_pattern", int, None)
    plain = skeleton.rms(config, offset=1.0)
    around = {} if model_type in ("gemma", "vaultgemma") else {"post_attention": plain, "post_mlp": plain}
    mlp = skeleton.mlp(config, "gelu_pytorch_tanh", _activation_key(config))
    if config.values.get("hidden_act") == "gelu":  # old configs of Gemma 1 say gelu and mean its tanh form
        mlp = replace(mlp, activation="gelu_tanh")
    attentions = _attentions(config, model_type, plain)
    layers = [
        replace(layer, attention=attention)
        for attention in attentions
        for layer in skeleton.layers(attention, mlp, plain, [attention.window], **around)
    ]
    return skeleton.decoder(
        config, model_type, layers, plain, tied=True, context=131072 if model_type == "gemma3_text" else 8192,
        embedding_scale=config.positive("hidden_size") ** 0.5,
        logit_softcap=_softcap(config, "final_logit_softcapping", 30.0 if model_type in _CAPPED else None),
    )  # fmt: skip


def _activation_key(config: Config) -> str:
    config.take("hidden_act", str, None)
    return "hidden_activation"


def _attentions(config: Config, model_type: str, plain: Norm) -> list[Attention]:
    bias = config.take("attention_bias", bool, False)
    softcap = 50.0 if model_type in _CAPPED else None
    base = skeleton.attention(config, head_dim=256, rope=None, qkv_bias=bias, output_bias=bias)
    if model_type != "gemma":
        scale = config.take("query_pre_attn_scalar", float, 256.0) ** -0.5
        base = replace(base, scale=scale, softcap=_softcap(config, "attn_logit_softcapping", softcap))
    if model_type == "gemma3_text":
        base = replace(base, qk_norm=HeadNorm(plain))
    windows = _windows(config, model_type)
    ropes = {sliding: _rope(config, base.head_dim, model_type, sliding) for sliding in (False, True)}
    return [replace(base, window=window, rope=ropes[window is not None]) for window in windows]


def _windows(config: Config, model_type: str) -> list[int | None]:
    if model_type == "gemma":
        return skeleton.windows(config, skeleton.never, None)
    period = 2
    if model_type == "gemma3_text":
        period = config.positive("_sliding_window_pattern", config.positive("sliding_window_pattern", 6))
    return skeleton.windows(config, skeleton.all_but_every(period), config.positive("sliding_window", 4096))


def _rope(config: Config, head_dim: int, model_type: str, sliding: bool) -> Rope:
    if model_type != "gemma3_text":
        return read_rope(config, head_dim, skeleton.context_length(config, 8192))
    local = config.take("rope_local_base_freq", float, 10000.0)
    if sliding and not isinstance(config.values.get("rope_parameters"), dict):
        return read_rope(Config({"rope_theta": local}), head_dim, 131072)
    kind = "sliding_attention" if sliding else "full_attention"
    return read_rope(config, head_dim, skeleton.context_length(config, 131072), local if sliding else 1e6, kind=kind)


def _softcap(config: Config, key: str, default: float | None) -> float | None:
    return config.take(key, float, None if key in config.values else default)
