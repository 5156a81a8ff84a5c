"""`model_type: gpt_neox`: Pythia, GPT-NeoX-20B, RedPajama-INCITE, Dolly; each branch has its own LayerNorm."""

from dataclasses import replace

from ..decoder import skeleton
from ..decoder.config import Config
from ..decoder.description import Decoder
from ..decoder.sources import Table, linear, norm, per_head_qkv, table

_LAYER = "gpt_neox.layers.{i}."
WEIGHTS: Table = {
    **table(embed_weight="gpt_neox.embed_in.weight", head_weight="embed_out.weight"),
    **norm("pre_attention", _LAYER + "input_layernorm"),
    **norm("pre_mlp", _LAYER + "post_attention_layernorm"),
    **norm("final_norm", "gpt_neox.final_layer_norm"),
    **linear("qkv", _LAYER + "attention.query_key_value", order=per_head_qkv),
    **linear("o", _LAYER + "attention.dense"),
    **linear("up", _LAYER + "mlp.dense_h_to_4h"),
    **linear("down", _LAYER + "mlp.dense_4h_to_h"),
}


def describe(config: Config) -> Decoder:
    """Parallel branches unless `use_parallel_residual` is false."""
    plain = skeleton.layer_norm(config)
    bias = config.take("attention_bias", bool, True)
    theta = config.take("rotary_emb_base", float, 10000.0)
    partial = config.take("rotary_pct", float, 0.25)
    attention = skeleton.attention(config, theta=theta, partial=partial, qkv_bias=bias, output_bias=bias)
    mlp = skeleton.mlp(config, "gelu", bias=True, gated=False)
    layers = skeleton.layers(attention, mlp, plain, skeleton.windows(config, skeleton.never, None))
    if config.take("use_parallel_residual", bool, True):
        layers = tuple(replace(layer, topology="parallel") for layer in layers)
    return skeleton.decoder(config, "gpt_neox", layers, plain)
