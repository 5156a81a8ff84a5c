"""gpt-oss."""

from collections.abc import Mapping

from ..config import Keys, Settings
from ..family import GgufFamily, biased, counts
from ..joined import GATE_UP, Joined
from ..names import LAYER

_GPT_OSS_EXPERTS = {
    LAYER + "mlp.experts.gate_up_proj": Joined(GATE_UP, "interleaved", transposed=True),
    LAYER + "mlp.experts.gate_up_proj_bias": Joined(("ffn_gate_exps.bias", "ffn_up_exps.bias"), "interleaved"),
}


def _gpt_oss(keys: Keys) -> Settings:
    settings = {**biased(keys), **counts(keys, "num_local_experts")}
    settings["rope_parameters"] = {**settings["rope_parameters"], "truncate": False}
    window = keys.integer("attention.sliding_window")
    return {**settings, "sliding_window": window, "layer_types": keys.layer_types(2)}


ARCHITECTURES: Mapping[str, GgufFamily] = {
    "gpt-oss": GgufFamily(
        "gpt_oss",
        {
            "blk.{}.ffn_down_exps.bias": "model.layers.{}.mlp.experts.down_proj_bias",
        },
        _gpt_oss,
        transposed=frozenset({"ffn_down_exps"}),
        joined=_GPT_OSS_EXPERTS,
    ),
}
