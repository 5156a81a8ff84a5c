"""`model_type: phi3`: Phi-3, Phi-3.5 and Phi-4, whose q, k, v and gate, up are stored as one matrix each."""

from ..decoder import skeleton
from ..decoder.config import Config
from ..decoder.description import Decoder
from ..decoder.sources import LAYER, SKELETON, linear

WEIGHTS = {
    **SKELETON,
    **linear("qkv", LAYER + "self_attn.qkv_proj"),
    **linear("gate_up", LAYER + "mlp.gate_up_proj"),
}


def describe(config: Config) -> Decoder:
    """Every layer slides, unless the window is as long as the context."""
    context = skeleton.context_length(config, 4096)
    stated = config.positive("sliding_window", context)
    window = None if stated >= context else stated
    norm = skeleton.rms(config, default=1e-5)
    attention = skeleton.attention(config, context=4096)
    windows = skeleton.windows(config, skeleton.never if window is None else skeleton.always, window)
    layers = skeleton.layers(attention, skeleton.mlp(config), norm, windows)
    return skeleton.decoder(config, "phi3", layers, norm, context=4096)
