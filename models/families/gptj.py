"""GPT-J's line: gptj and codegen; interleaved rope, attention and network in parallel on one LayerNorm."""

from ..decoder import skeleton
from ..decoder.config import Config
from ..decoder.description import MLP, Attention, Decoder, Layer
from ..decoder.rope import fixed_rope
from ..decoder.sources import Table, codegen_qkv, linear, norm, table

_LAYER = "transformer.h.{i}."
_SHARED: Table = {
    **table(embed_weight="transformer.wte.weight", head_weight="lm_head.weight", head_bias="lm_head.bias"),
    **norm("pre_attention", _LAYER + "ln_1"),
    **norm("final_norm", "transformer.ln_f"),
    **linear("o", _LAYER + "attn.out_proj"),
    **linear("up", _LAYER + "mlp.fc_in"),
    **linear("down", _LAYER + "mlp.fc_out"),
}


def weights(model_type: str, _config: Config) -> Table:
    """CodeGen packs q, k and v in four blocks; GPT-J has them apart."""
    if model_type == "codegen":
        return {**_SHARED, **linear("qkv", _LAYER + "attn.qkv_proj", order=codegen_qkv)}
    return {**_SHARED, **linear("qkv", *(_LAYER + f"attn.{part}_proj" for part in "qkv"))}


def describe(config: Config) -> Decoder:
    """Attention has no biases; the network and the head have."""
    hidden, heads = config.positive("n_embd"), config.positive("n_head")
    plain = skeleton.layer_norm(config, "layer_norm_epsilon")
    width = config.positive("rotary_dim", None) or hidden // heads
    attention = Attention(heads, heads, hidden // heads, fixed_rope(10000.0, width, interleaved=True))
    kind = config.choice("activation_function", skeleton.ACTIVATIONS, "gelu_new")
    mlp = MLP(config.positive("n_inner", None) or 4 * hidden, kind, bias=True, gated=False)
    layer = Layer(attention, mlp, plain, None, topology="parallel")
    return Decoder(
        model_type=config.take("model_type", str),
        hidden_size=hidden,
        vocab_size=config.positive("vocab_size"),
        context_length=config.positive("n_positions", 2048),
        tied_head=config.take("tie_word_embeddings", bool, False),
        layers=(layer,) * config.positive("n_layer"),
        final_norm=plain,
        head_bias=True,
    )
