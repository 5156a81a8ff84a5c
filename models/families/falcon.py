"""`model_type: falcon`: three generations that differ in packing, norms, positions and topology."""

from dataclasses import replace

from ..decoder import skeleton
from ..decoder.alibi import bloom_slopes
from ..decoder.config import Config
from ..decoder.description import MLP, Attention, Decoder, Layer
from ..decoder.rope import read_rope
from ..decoder.sources import Table, linear, norm, per_group_qkv, per_head_qkv, table

_LAYER = "transformer.h.{i}."
_SHARED: Table = {
    **table(embed_weight="transformer.word_embeddings.weight", head_weight="lm_head.weight"),
    **norm("final_norm", "transformer.ln_f"),
    **linear("o", _LAYER + "self_attention.dense"),
    **linear("up", _LAYER + "mlp.dense_h_to_4h"),
    **linear("down", _LAYER + "mlp.dense_4h_to_h"),
}


def weights(_model_type: str, config: Config) -> Table:
    """New: q, k, v per key/value head, a norm for each branch. 7B: q | k | v. RW: q, k, v per head."""
    two_norms = _new(config) and config.take("num_ln_in_parallel_attn", int, 2) == 2
    order = per_group_qkv if _new(config) else None if config.take("multi_query", bool, True) else per_head_qkv
    return {
        **_SHARED,
        **linear("qkv", _LAYER + "self_attention.query_key_value", order=order),
        **norm("pre_attention", _LAYER + ("ln_attn" if two_norms else "input_layernorm")),
        **norm("pre_mlp", _LAYER + ("ln_mlp" if two_norms else "post_attention_layernorm")),
    }


def describe(config: Config) -> Decoder:
    """The decoder of any of the three generations."""
    hidden = config.positive("hidden_size")
    plain = skeleton.layer_norm(config, "layer_norm_epsilon")
    attention, bias = _attention(config, hidden), config.take("bias", bool, False)
    kind = config.choice("activation", skeleton.ACTIVATIONS, "gelu")
    mlp = MLP(config.positive("ffn_hidden_size", 4 * hidden), kind, bias=bias, gated=False)
    layer = Layer(replace(attention, qkv_bias=bias, output_bias=bias), mlp, plain, plain)
    if _new(config) or config.take("parallel_attn", bool, True):
        both = _new(config) and config.take("num_ln_in_parallel_attn", int, 2) == 2
        layer = replace(layer, topology="parallel", pre_mlp=plain if both else None)
    for spelling in ("multi_query", "parallel_attn", "num_ln_in_parallel_attn"):
        config.take(spelling, object, None)
    return Decoder(
        model_type="falcon",
        hidden_size=hidden,
        vocab_size=config.positive("vocab_size"),
        context_length=skeleton.context_length(config),
        tied_head=config.take("tie_word_embeddings", bool, True),
        layers=(layer,) * (config.positive("num_hidden_layers", None) or config.positive("n_layer")),
        final_norm=plain,
    )


def _attention(config: Config, hidden: int) -> Attention:
    heads = config.positive("num_attention_heads", None) or config.positive("n_head")
    stated = config.positive("num_kv_heads", config.positive("n_head_kv", heads))
    kv_heads = stated if _new(config) else 1 if config.take("multi_query", bool, True) else heads
    size = hidden // heads
    rope = read_rope(config, size, skeleton.context_length(config))
    if not config.take("alibi", bool, False):
        return Attention(heads, kv_heads, size, rope)
    # Falcon scales the sum of scores and biases, so the slopes shrink too.
    return Attention(heads, kv_heads, size, None, alibi=tuple(slope / size**0.5 for slope in bloom_slopes(heads)))


def _new(config: Config) -> bool:
    return config.take("new_decoder_architecture", bool, False)
