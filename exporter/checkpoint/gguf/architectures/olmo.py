"""OLMo 1 to 3."""

from collections.abc import Mapping
from dataclasses import replace

from ..config import Keys, Settings, present
from ..family import GgufFamily
from ..orders import HALVES


def _olmo(keys: Keys) -> Settings:
    settings = keys.standard()
    del settings["rms_norm_eps"]
    return {**settings, **present(clip_qkv=keys.get("attention.clamp_kqv"))}


def _olmo2(keys: Keys) -> Settings:
    window = keys.get("attention.sliding_window")
    if not window:
        return keys.standard()
    return {**keys.standard(), "sliding_window": window, "layer_types": keys.layer_types(4)}


def _with_windows(keys: Keys, family: GgufFamily) -> GgufFamily:
    """OLMo 3 is OLMo 2 with sliding windows."""
    return replace(family, model_type="olmo3") if keys.get("attention.sliding_window") else family


ARCHITECTURES: Mapping[str, GgufFamily] = {
    "olmo": GgufFamily(
        "olmo",
        {},
        _olmo,
        HALVES,
    ),
    "olmo2": GgufFamily(
        "olmo2",
        {},
        _olmo2,
        variant=_with_windows,
        also=("olmo3",),
    ),
}
