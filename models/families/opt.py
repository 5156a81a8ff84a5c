"""`model_type: opt`: learned positions from row 2 on; OPT-350m norms after its branches and projects its table."""

from runtime.errors import UnsupportedError

from ..decoder import skeleton
from ..decoder.config import Config
from ..decoder.description import MLP, Attention, Decoder, Layer, LearnedPositions, Norm
from ..decoder.sources import Table, linear, norm, table

_BODY, _LAYER = "model.decoder.", "model.decoder.layers.{i}."
WEIGHTS: Table = {
    **table(
        embed_weight=_BODY + "embed_tokens.weight",
        positions_weight=_BODY + "embed_positions.weight",
        head_weight="lm_head.weight",
    ),
    **linear("project_in", _BODY + "project_in"),
    **linear("project_out", _BODY + "project_out"),
    **norm("pre_attention", _LAYER + "self_attn_layer_norm"),
    **norm("pre_mlp", _LAYER + "final_layer_norm"),
    **norm("final_norm", _BODY + "final_layer_norm"),
    **linear("qkv", *(_LAYER + f"self_attn.{part}_proj" for part in "qkv")),
    **linear("o", _LAYER + "self_attn.out_proj"),
    **linear("up", _LAYER + "fc1"),
    **linear("down", _LAYER + "fc2"),
}

_OFFSET = 2


def describe(config: Config) -> Decoder:
    """Pre-norm, or post-norm without a final norm when `do_layer_norm_before` is false."""
    if not config.take("layer_norm_elementwise_affine", bool, True):
        raise UnsupportedError(f"{config.where}: layer_norm_elementwise_affine false is not supported for opt.")
    hidden, heads = config.positive("hidden_size"), config.positive("num_attention_heads")
    context, bias = config.positive("max_position_embeddings", 2048), config.take("enable_bias", bool, True)
    first, plain = config.take("do_layer_norm_before", bool, True), Norm("layer", 1e-5, bias=True)
    width = config.positive("word_embed_proj_dim", hidden)
    kind = config.choice("activation_function", skeleton.ACTIVATIONS, "relu")
    attention = Attention(heads, heads, hidden // heads, rope=None, qkv_bias=bias, output_bias=bias)
    mlp = MLP(config.positive("ffn_dim"), kind, bias=bias, gated=False)
    layer = Layer(attention, mlp, plain, plain, topology="sequential" if first else "post_norm")
    removed = config.take("_remove_final_layer_norm", bool, False)
    return Decoder(
        model_type="opt",
        hidden_size=hidden,
        vocab_size=config.positive("vocab_size"),
        context_length=context,
        tied_head=config.take("tie_word_embeddings", bool, True),
        layers=(layer,) * config.positive("num_hidden_layers"),
        final_norm=plain if first and not removed else None,
        embedding_width=None if width == hidden else width,
        positions=LearnedPositions(context + _OFFSET, _OFFSET),
    )
