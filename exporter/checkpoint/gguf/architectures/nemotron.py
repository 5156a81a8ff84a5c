"""Nemotron."""

from collections.abc import Mapping

from ..config import Keys, Settings
from ..family import GgufFamily


def _nemotron(keys: Keys) -> Settings:
    biases = {"attention_bias": keys.has("blk.0.attn_q.bias"), "mlp_bias": keys.has("blk.0.ffn_down.bias")}
    return {**keys.standard("norm_eps"), "hidden_act": "relu2", **biases}


ARCHITECTURES: Mapping[str, GgufFamily] = {
    "nemotron": GgufFamily("nemotron", {}, _nemotron, norm_shift=-1.0),
}
