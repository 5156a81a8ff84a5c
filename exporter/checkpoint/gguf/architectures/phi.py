"""Phi 1 and 2."""

from collections.abc import Mapping

from ..config import Keys, Settings
from ..family import GgufFamily
from ..names import SPLIT_QKV


def _phi(keys: Keys) -> Settings:
    return {**keys.standard("layer_norm_eps"), "hidden_act": "gelu_new", "qk_layernorm": False}


ARCHITECTURES: Mapping[str, GgufFamily] = {
    "phi2": GgufFamily(
        "phi",
        {
            "blk.{}.ffn_up": "model.layers.{}.mlp.fc1",
            "blk.{}.attn_qkv": SPLIT_QKV["blk.{}.attn_qkv"],
        },
        _phi,
    ),
}
