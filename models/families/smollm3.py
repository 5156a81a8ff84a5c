"""`model_type: smollm3`: Llama with some layers that have no rope."""

from dataclasses import replace

from runtime.errors import CheckpointError

from ..decoder import skeleton
from ..decoder.config import Config
from ..decoder.description import Decoder
from ..decoder.sources import SKELETON

WEIGHTS = SKELETON


def describe(config: Config) -> Decoder:
    """`no_rope_layers[i]` is 1 where layer i has rope, 0 where it has none; the last of every four by default."""
    bias = config.take("attention_bias", bool, False)
    attention = skeleton.attention(config, theta=2e6, context=32768, qkv_bias=bias, output_bias=bias)
    mlp, norm = skeleton.mlp(config, bias=config.take("mlp_bias", bool, False)), skeleton.rms(config)
    roped = _roped(config)
    sliding = config.take("use_sliding_window", bool, False)
    window = config.positive("sliding_window", None) if sliding else None
    windows = skeleton.windows(config, lambda i: sliding and not roped[i], window)
    layers = [
        replace(layer, attention=replace(layer.attends, rope=layer.attends.rope if has else None))
        for layer, has in zip(skeleton.layers(attention, mlp, norm, windows), roped, strict=True)
    ]
    return skeleton.decoder(config, "smollm3", layers, norm, tied=True, context=32768)


def _roped(config: Config) -> list[int]:
    count, period = config.positive("num_hidden_layers"), config.positive("no_rope_layer_interval", 4)
    stated: list[int] = config.take("no_rope_layers", list, [int((i + 1) % period != 0) for i in range(count)])
    if len(stated) != count:
        raise CheckpointError(f"{config.where}: no_rope_layers has {len(stated)} entries for {count} layers.")
    return stated
