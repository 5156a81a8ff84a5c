"""`model_type: mpt`: linear attention biases, LayerNorms without bias, no biases at all."""

from runtime.errors import UnsupportedError

from ..decoder import skeleton
from ..decoder.alibi import mpt_slopes
from ..decoder.config import Config
from ..decoder.description import MLP, Attention, Decoder, Layer
from ..decoder.sources import Table, linear, norm, table

_LAYER = "transformer.blocks.{i}."
WEIGHTS: Table = {
    **table(embed_weight="transformer.wte.weight", head_weight="lm_head.weight"),
    **norm("pre_attention", _LAYER + "norm_1"),
    **norm("pre_mlp", _LAYER + "norm_2"),
    **norm("final_norm", "transformer.norm_f"),
    **linear("qkv", _LAYER + "attn.Wqkv"),
    **linear("o", _LAYER + "attn.out_proj"),
    **linear("up", _LAYER + "ffn.up_proj"),
    **linear("down", _LAYER + "ffn.down_proj"),
}

# Settings without influence on what transformers computes.
_IRRELEVANT = ("embedding_fraction", "init_device", "learned_pos_emb", "logit_scale", "no_bias", "norm_type", "verbose")


def describe(config: Config) -> Decoder:
    """The decoder of an MPT config, whose attention settings are nested in `attn_config`."""
    for key in _IRRELEVANT:
        config.take(key, object, None)
    nested = config.take("attn_config", dict, {})
    if nested.get("qk_ln") or nested.get("prefix_lm") or nested.get("alibi") is False:
        raise UnsupportedError(f"{config.where}: attn_config with qk_ln, prefix_lm or without alibi is not supported.")
    hidden, heads = config.positive("d_model"), config.positive("n_heads")
    plain = skeleton.layer_norm(config, "layer_norm_epsilon", bias=False)
    attention = Attention(
        heads, heads, hidden // heads, None,
        alibi=mpt_slopes(heads, float(nested.get("alibi_bias_max", 8))),
        scale=nested.get("softmax_scale"),
        clip=nested.get("clip_qkv"),
    )  # fmt: skip
    mlp = MLP(config.positive("expansion_ratio", 4) * hidden, "gelu", gated=False)
    return Decoder(
        model_type="mpt",
        hidden_size=hidden,
        vocab_size=config.positive("vocab_size"),
        context_length=config.positive("max_seq_len", 2048),
        tied_head=config.take("tie_word_embeddings", bool, True),
        layers=(Layer(attention, mlp, plain, plain),) * config.positive("n_layers"),
        final_norm=plain,
    )
