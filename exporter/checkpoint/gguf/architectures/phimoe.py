"""Phi 3.5 with experts."""

from collections.abc import Mapping

from ..config import Keys, Settings, present
from ..family import GgufFamily, counts
from .phi3 import phi3


def _phimoe(keys: Keys) -> Settings:
    """The file has one attention factor, where the original config has one for short and one for long texts."""
    settings = {**phi3(keys), **counts(keys, "num_local_experts")}
    rope = dict(settings["rope_parameters"])
    factor = rope.pop("attention_factor", None)
    rope |= present(short_mscale=factor, long_mscale=factor)
    biases = {"attention_bias": keys.has("blk.0.attn_q.bias"), "lm_head_bias": keys.has("output.bias")}
    return {**settings, "rope_parameters": rope, **biases}


ARCHITECTURES: Mapping[str, GgufFamily] = {
    "phimoe": GgufFamily(
        "phimoe",
        {},
        _phimoe,
    ),
}
