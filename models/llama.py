"""`model_type: llama`: Llama 1 to 3.3, SmolLM and SmolLM2, TinyLlama, Yi, Vicuna, R1-Distill-Llama."""

from collections.abc import Mapping

from .config import Config
from .description import MLP, Activation, Attention, Decoder, Layer
from .rope import read_rope

ACTIVATIONS: Mapping[str, Activation] = {"silu": "silu", "swish": "silu"}

_LAYER = "model.layers.{i}."

# graph initializer → the checkpoint tensors that are stacked into it, {i} being the layer
WEIGHTS: Mapping[str, tuple[str, ...]] = {
    "model.embed_tokens.weight": ("model.embed_tokens.weight",),
    _LAYER + "input_layernorm.weight": (_LAYER + "input_layernorm.weight",),
    _LAYER + "self_attn.qkv_proj.weight": tuple(_LAYER + f"self_attn.{x}_proj.weight" for x in "qkv"),
    _LAYER + "self_attn.qkv_proj.bias": tuple(_LAYER + f"self_attn.{x}_proj.bias" for x in "qkv"),
    _LAYER + "self_attn.o_proj.weight": (_LAYER + "self_attn.o_proj.weight",),
    _LAYER + "self_attn.o_proj.bias": (_LAYER + "self_attn.o_proj.bias",),
    _LAYER + "post_attention_layernorm.weight": (_LAYER + "post_attention_layernorm.weight",),
    _LAYER + "mlp.gate_up_proj.weight": tuple(_LAYER + f"mlp.{x}_proj.weight" for x in ("gate", "up")),
    _LAYER + "mlp.gate_up_proj.bias": tuple(_LAYER + f"mlp.{x}_proj.bias" for x in ("gate", "up")),
    _LAYER + "mlp.down_proj.weight": (_LAYER + "mlp.down_proj.weight",),
    _LAYER + "mlp.down_proj.bias": (_LAYER + "mlp.down_proj.bias",),
    "model.norm.weight": ("model.norm.weight",),
    "lm_head.weight": ("lm_head.weight",),
}


def describe(config: Config) -> Decoder:
    """The decoder that this config describes.

    Raises:
        CheckpointError, UnsupportedError: a key is missing, wrong, or not supported; the message names it.
    """
    hidden, context = config.positive("hidden_size"), config.positive("max_position_embeddings", 2048)
    heads = config.positive("num_attention_heads")
    head_dim = config.positive("head_dim", None) or hidden // heads
    bias = config.take("attention_bias", bool, False)
    attention = Attention(
        num_heads=heads,
        kv_heads=config.positive("num_key_value_heads", heads),
        head_dim=head_dim,
        rope=read_rope(config, head_dim, context),
        qkv_bias=bias,
        output_bias=bias,
    )
    mlp = MLP(
        intermediate_size=config.positive("intermediate_size"),
        activation=config.choice("hidden_act", ACTIVATIONS, "silu"),
        bias=config.take("mlp_bias", bool, False),
    )
    return Decoder(
        model_type="llama",
        hidden_size=hidden,
        vocab_size=config.positive("vocab_size"),
        context_length=context,
        norm_epsilon=config.take("rms_norm_eps", float, 1e-6),
        tied_head=config.take("tie_word_embeddings", bool, False),
        layers=(Layer(attention, mlp),) * config.positive("num_hidden_layers"),
    )
