"""Hunyuan: Llama with norms of queries and keys after their rotation; hunyuan_v1_moe has experts and a shared MLP."""

from runtime.errors import UnsupportedError

from ..decoder import skeleton
from ..decoder.config import Config
from ..decoder.description import Decoder, HeadNorm, MoE, Router
from ..decoder.sources import LAYER, SKELETON, gated, norm, table

WEIGHTS = {
    **SKELETON,
    **norm("q_norm", LAYER + "self_attn.query_layernorm"),
    **norm("k_norm", LAYER + "self_attn.key_layernorm"),
    **table(router_weight=LAYER + "mlp.gate.wg.weight"),
    **gated("experts", LAYER + "mlp.experts.{e}"),
    **gated("shared", LAYER + "mlp.shared_mlp"),
}


def describe(config: Config) -> Decoder:
    """The decoder of a dense Hunyuan config, or of one with experts in every layer."""
    model_type = config.take("model_type", str)
    config.take("eod_token_id", int, None)
    bias = config.take("attention_bias", bool, False)
    plain, mlp = skeleton.rms(config, default=1e-5), skeleton.mlp(config)
    attention = skeleton.attention(config, qkv_bias=bias, output_bias=bias, qk_norm=HeadNorm(plain, after_rope=True))
    feed = MoE(_router(config), mlp, mlp) if model_type == "hunyuan_v1_moe" else mlp
    layers = skeleton.layers(attention, feed, plain, skeleton.windows(config, skeleton.never, None))
    return skeleton.decoder(config, model_type, layers, plain)


def _router(config: Config) -> Router:
    """Numbers may be lists of one for each layer; only equal ones are supported."""
    for key in ("num_experts", "moe_topk", "num_experts_per_tok"):
        values = config.values.get(key)
        if isinstance(values, list):
            if len(set(values)) != 1:
                raise UnsupportedError(f"{config.where}: {key} must be the same in all layers, got {values!r}.")
            config.values[key] = values[0]
    return skeleton.router(config, top_k="moe_topk" if "moe_topk" in config.values else "num_experts_per_tok")
