"""GPT-NeoX."""

from collections.abc import Mapping

from ..config import Keys, Settings
from ..family import GgufFamily
from ..orders import GROUPED


def _gpt_neox(keys: Keys) -> Settings:
    return {
        **keys.standard("layer_norm_eps"),
        "hidden_act": "gelu",
        "attention_bias": keys.has("blk.0.attn_qkv.bias"),
        "use_parallel_residual": bool(keys.get("use_parallel_residual", True)),
    }


ARCHITECTURES: Mapping[str, GgufFamily] = {
    "gptneox": GgufFamily("gpt_neox", {}, _gpt_neox, GROUPED),
}
