"""StarCoder 2."""

from collections.abc import Mapping

from ..config import Keys, Settings
from ..family import GgufFamily


def _starcoder2(keys: Keys) -> Settings:
    return {
        **keys.standard("norm_epsilon"),
        "hidden_act": "gelu_pytorch_tanh",
        "use_bias": keys.has("blk.0.attn_q.bias"),
    }


ARCHITECTURES: Mapping[str, GgufFamily] = {
    "starcoder2": GgufFamily(
        "starcoder2",
        {"blk.{}.ffn_up": "model.layers.{}.mlp.c_fc"},
        _starcoder2,
    ),
}
