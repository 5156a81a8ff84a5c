"""`model_type: ministral3`: Mistral with YaRN, and queries that grow with their position."""

from dataclasses import replace

from ..decoder import skeleton
from ..decoder.config import Config
from ..decoder.description import Decoder
from ..decoder.sources import SKELETON

WEIGHTS = SKELETON


def describe(config: Config) -> Decoder:
    """The decoder of a Ministral 3 config; queries grow as Llama 4's do."""
    attention = skeleton.attention(config, head_dim=128, theta=1e6, context=262144)
    rope = config.take("rope_parameters", dict, {})
    beta = rope.get("llama_4_scaling_beta")
    if beta:
        attention = replace(attention, query_growth=(float(beta), int(rope["original_max_position_embeddings"])))
    norm = skeleton.rms(config, default=1e-5)
    windows = skeleton.windows(config, skeleton.always, config.positive("sliding_window", None))
    layers = skeleton.layers(attention, skeleton.mlp(config), norm, windows)
    return skeleton.decoder(config, "ministral3", layers, norm, context=262144)
