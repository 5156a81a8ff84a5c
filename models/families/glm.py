"""GLM-4 as transformers holds it: glm and glm4 (norms around both branches); interleaved rope on half of each head."""

from ..decoder import skeleton
from ..decoder.config import Config
from ..decoder.description import Decoder
from ..decoder.sources import LAYER, SKELETON, linear, norm

WEIGHTS = {
    **SKELETON,
    **linear("gate_up", LAYER + "mlp.gate_up_proj"),
    **norm("post_attention", LAYER + "post_self_attn_layernorm"),
    **norm("post_mlp", LAYER + "post_mlp_layernorm"),
}


def describe(config: Config) -> Decoder:
    """In glm4, `post_attention_layernorm` is the norm before the MLP, as in Llama."""
    model_type = config.take("model_type", str)
    plain = skeleton.rms(config, default=1.5625e-07)
    around = {"post_attention": plain, "post_mlp": plain} if model_type == "glm4" else {}
    attention = skeleton.attention(
        config, head_dim=128, partial=0.5, interleaved=True, context=131072,
        qkv_bias=config.take("attention_bias", bool, True),
    )  # fmt: skip
    windows = skeleton.windows(config, skeleton.never, None)
    layers = skeleton.layers(attention, skeleton.mlp(config), plain, windows, **around)
    return skeleton.decoder(config, model_type, layers, plain, context=131072)
