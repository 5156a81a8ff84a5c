"""`model_type: phi`: Phi-1, 1.5 and 2; attention and a plain feed-forward network in parallel on one LayerNorm."""

from dataclasses import replace

from ..decoder import skeleton
from ..decoder.config import Config
from ..decoder.description import Decoder, HeadNorm
from ..decoder.sources import LAYER, SKELETON, linear, norm

WEIGHTS = {
    **SKELETON,
    **norm("final_norm", "model.final_layernorm"),
    **norm("q_norm", LAYER + "self_attn.q_layernorm"),
    **norm("k_norm", LAYER + "self_attn.k_layernorm"),
    **linear("o", LAYER + "self_attn.dense"),
    **linear("up", LAYER + "mlp.fc1"),
    **linear("down", LAYER + "mlp.fc2"),
}


def describe(config: Config) -> Decoder:
    """Every linear layer has a bias, the head included."""
    plain = skeleton.layer_norm(config)
    normed = HeadNorm(plain) if config.take("qk_layernorm", bool, False) else None
    attention = skeleton.attention(config, partial=0.5, qkv_bias=True, output_bias=True, qk_norm=normed)
    mlp = skeleton.mlp(config, "gelu_new", bias=True, gated=False)
    windows = skeleton.windows(config, skeleton.never, None)
    layers = [
        replace(layer, pre_mlp=None, topology="parallel") for layer in skeleton.layers(attention, mlp, plain, windows)
    ]
    return skeleton.decoder(config, "phi", layers, plain, head_bias=True)
