"""Llama, and InternLM 2, which is one."""

from collections.abc import Mapping

from ..config import Keys, Settings
from ..family import GgufFamily
from ..orders import HALVES
from .mixtral import MIXTRAL


def llama(keys: Keys) -> Settings:
    """Llama's keys, with biases as the tensors have them."""
    return {
        **keys.standard(),
        "attention_bias": keys.has("blk.0.attn_q.bias"),
        "mlp_bias": keys.has("blk.0.ffn_down.bias"),
    }


def _with_experts(keys: Keys, family: GgufFamily) -> GgufFamily:
    """Mixtral is stored under the same name."""
    return MIXTRAL if keys.get("expert_count") else family


ARCHITECTURES: Mapping[str, GgufFamily] = {
    "llama": GgufFamily("llama", {}, llama, HALVES, variant=_with_experts, also=("mixtral",)),
    "internlm2": GgufFamily("llama", {}, llama, HALVES),
}
