"""GLM 4."""

from collections.abc import Mapping

from ..config import Keys, Settings
from ..family import GgufFamily
from ..names import SPLIT_QKV


def _glm(keys: Keys) -> Settings:
    bias = keys.has("blk.0.attn_qkv.bias") or keys.has("blk.0.attn_q.bias")
    return {**keys.standard(), "attention_bias": bias}


ARCHITECTURES: Mapping[str, GgufFamily] = {
    "chatglm": GgufFamily(
        "glm",
        {
            "blk.{}.ffn_up": "model.layers.{}.mlp.gate_up_proj",
            "blk.{}.attn_qkv": SPLIT_QKV["blk.{}.attn_qkv"],
        },
        _glm,
    ),
    "glm4": GgufFamily(
        "glm4",
        {"blk.{}.ffn_up": "model.layers.{}.mlp.gate_up_proj", "blk.{}.attn_qkv": SPLIT_QKV["blk.{}.attn_qkv"]},
        _glm,
    ),
}
