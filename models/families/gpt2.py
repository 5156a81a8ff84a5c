"""GPT-2's line: gpt2, gpt_bigcode, gpt_neo; learned positions, LayerNorms, plain feed-forward networks."""

from dataclasses import replace

from runtime.errors import CheckpointError, UnsupportedError

from ..decoder import skeleton
from ..decoder.config import Config
from ..decoder.description import MLP, Attention, Decoder, Layer, LearnedPositions
from ..decoder.sources import Source, Table, linear, norm, per_head_qkv, table

_LAYER = "transformer.h.{i}."
_SHARED: Table = {
    **table(
        embed_weight="transformer.wte.weight", head_weight="lm_head.weight", positions_weight="transformer.wpe.weight"
    ),
    **norm("pre_attention", _LAYER + "ln_1"),
    **norm("pre_mlp", _LAYER + "ln_2"),
    **norm("final_norm", "transformer.ln_f"),
}


def weights(model_type: str, config: Config) -> Table:
    """GPT-2 stores matrices `[in, out]`, BigCode and Neo `[out, in]`; BigCode without multi_query packs each head."""
    if model_type == "gpt_neo":
        attention = _LAYER + "attn.attention."
        return {
            **_SHARED,
            **linear("qkv", *(attention + f"{part}_proj" for part in "qkv")),
            **linear("o", attention + "out_proj"),
            **_mlp("out_in"),
        }
    stored = "in_out" if model_type == "gpt2" else "out_in"
    packed = model_type == "gpt_bigcode" and not config.take("multi_query", bool, True)
    return {
        **_SHARED,
        **linear("qkv", _LAYER + "attn.c_attn", stored=stored, order=per_head_qkv if packed else None),
        **linear("o", _LAYER + "attn.c_proj", stored=stored),
        **_mlp(stored),
    }


def _mlp(stored: str) -> dict[str, Source]:
    return {**linear("up", _LAYER + "mlp.c_fc", stored=stored), **linear("down", _LAYER + "mlp.c_proj", stored=stored)}


def describe(config: Config) -> Decoder:
    """The decoder of any of the three."""
    model_type = config.take("model_type", str)
    neo = model_type == "gpt_neo"
    hidden = config.positive("hidden_size" if neo else "n_embd")
    heads = config.positive("num_heads" if neo else "n_head")
    context = config.positive("max_position_embeddings" if neo else "n_positions", 2048 if neo else 1024)
    plain = skeleton.layer_norm(config, "layer_norm_epsilon")
    default = "gelu_pytorch_tanh" if model_type == "gpt_bigcode" else "gelu_new"
    inner = config.positive("intermediate_size" if neo else "n_inner", None) or 4 * hidden
    mlp = MLP(inner, config.choice("activation_function", skeleton.ACTIVATIONS, default), bias=True, gated=False)
    base = Attention(heads, heads, hidden // heads, rope=None, qkv_bias=not neo, output_bias=True)
    attentions = _neo_attentions(config, base) if neo else _gpt2_attentions(config, base, model_type)
    return Decoder(
        model_type=model_type,
        hidden_size=hidden,
        vocab_size=config.positive("vocab_size"),
        context_length=context,
        tied_head=config.take("tie_word_embeddings", bool, True),
        layers=tuple(Layer(attention, mlp, plain, plain) for attention in attentions),
        final_norm=plain,
        positions=LearnedPositions(context),
    )


def _gpt2_attentions(config: Config, base: Attention, model_type: str) -> list[Attention]:
    if not config.take("scale_attn_weights", bool, True):
        base = replace(base, scale=1.0)
    config.take("num_key_value_heads", int, None)
    if model_type == "gpt_bigcode" and config.take("multi_query", bool, True):
        base = replace(base, kv_heads=1)
    layers = config.positive("n_layer")
    if not config.take("scale_attn_by_inverse_layer_idx", bool, False):
        return [base] * layers
    scale = base.head_dim**-0.5 if base.scale is None else base.scale
    return [replace(base, scale=scale / (i + 1)) for i in range(layers)]


def _neo_attentions(config: Config, base: Attention) -> list[Attention]:
    """`attention_types` repeats patterns of global and local layers; nothing is divided by sqrt(D)."""
    window = config.positive("window_size", 256)
    config.take("attention_layers", list, None)
    try:
        stated = config.take("attention_types", list, [[["global", "local"], 12]])
        kinds = [kind for pattern, times in stated for _ in range(times) for kind in pattern]
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{config.where}: attention_types must be a list of [[kinds], times].") from error
    if set(kinds) - {"global", "local"} or len(kinds) != config.positive("num_layers"):
        raise UnsupportedError(
            f"{config.where}: attention_types {kinds} does not name global or local for every layer."
        )
    return [replace(base, scale=1.0, window=window if kind == "local" else None) for kind in kinds]
