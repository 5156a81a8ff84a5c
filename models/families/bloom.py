"""`model_type: bloom`: linear attention biases, and a LayerNorm on the embedding."""

from ..decoder import skeleton
from ..decoder.alibi import bloom_slopes
from ..decoder.config import Config
from ..decoder.description import MLP, Attention, Decoder, Layer
from ..decoder.sources import Table, linear, norm, per_head_qkv, table

_LAYER = "transformer.h.{i}."
WEIGHTS: Table = {
    **table(embed_weight="transformer.word_embeddings.weight", head_weight="lm_head.weight"),
    **norm("embed_norm", "transformer.word_embeddings_layernorm"),
    **norm("pre_attention", _LAYER + "input_layernorm"),
    **norm("pre_mlp", _LAYER + "post_attention_layernorm"),
    **norm("final_norm", "transformer.ln_f"),
    **linear("qkv", _LAYER + "self_attention.query_key_value", order=per_head_qkv),
    **linear("o", _LAYER + "self_attention.dense"),
    **linear("up", _LAYER + "mlp.dense_h_to_4h"),
    **linear("down", _LAYER + "mlp.dense_4h_to_h"),
}

# BLOOM was trained on sequences of this length; its biases extrapolate, its config has no limit.
_CONTEXT = 2048


def describe(config: Config) -> Decoder:
    """The decoder of a BLOOM or BLOOMZ config."""
    hidden = config.positive("n_embed", None) or config.positive("hidden_size")
    config.take("hidden_size", int, None)
    heads = config.positive("num_attention_heads", None) or config.positive("n_head")
    config.take("n_head", int, None)
    plain = skeleton.layer_norm(config, "layer_norm_epsilon")
    slopes = bloom_slopes(heads)
    attention = Attention(heads, heads, hidden // heads, None, qkv_bias=True, output_bias=True, alibi=slopes)
    mlp = MLP(4 * hidden, "gelu_tanh", bias=True, gated=False)
    from_norm = config.take("apply_residual_connection_post_layernorm", bool, False)
    layer = Layer(attention, mlp, plain, plain, residual_from_norm=from_norm)
    config.take("num_hidden_layers", int, None)
    return Decoder(
        model_type="bloom",
        hidden_size=hidden,
        vocab_size=config.positive("vocab_size"),
        context_length=config.positive("seq_length", _CONTEXT),
        tied_head=config.take("tie_word_embeddings", bool, True),
        layers=(layer,) * (config.positive("n_layer", None) or config.positive("num_hidden_layers")),
        final_norm=plain,
        embedding_norm=plain,
    )
