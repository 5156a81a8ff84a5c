"""ERNIE 4.5."""

from collections.abc import Mapping

from ..config import Keys, Settings
from ..family import GgufFamily


def _ernie(keys: Keys) -> Settings:
    return {**keys.standard(), "use_bias": keys.has("blk.0.attn_q.bias")}


ARCHITECTURES: Mapping[str, GgufFamily] = {
    "ernie4_5": GgufFamily("ernie4_5", {}, _ernie),
}
