"""`model_type: nanochat`: norms without weights, one behind the embedding; ropes that turn backwards."""

from dataclasses import replace

from ..decoder import skeleton
from ..decoder.config import Config
from ..decoder.description import Decoder, HeadNorm
from ..decoder.sources import LAYER, SKELETON, linear

WEIGHTS = {**SKELETON, **linear("up", LAYER + "mlp.fc1"), **linear("down", LAYER + "mlp.fc2")}


def describe(config: Config) -> Decoder:
    """Queries and keys are normed after their rotation; without a weight, before it is the same."""
    plain = replace(skeleton.rms(config), weight=False)
    bias = config.take("attention_bias", bool, False)
    base = skeleton.attention(config, qkv_bias=bias, output_bias=bias, qk_norm=HeadNorm(plain))
    assert base.rope is not None
    backwards = tuple(-frequency for frequency in base.rope.inverse_frequencies)
    attention = replace(base, rope=replace(base.rope, inverse_frequencies=backwards))
    mlp = skeleton.mlp(config, "relu2", gated=False)
    layers = skeleton.layers(attention, mlp, plain, skeleton.windows(config, skeleton.never, None))
    softcap = config.take(
        "final_logit_softcapping", float, None if "final_logit_softcapping" in config.values else 15.0
    )
    return skeleton.decoder(config, "nanochat", layers, plain, embedding_norm=plain, logit_softcap=softcap)
