"""Ministral 3."""

from collections.abc import Mapping

from ..config import Keys, Settings
from ..family import GgufFamily
from ..orders import HALVES


def _ministral3(keys: Keys) -> Settings:
    settings = keys.standard()
    beta = keys.get("attention.temperature_scale")
    return settings if beta is None else _with_rope(settings, llama_4_scaling_beta=beta)


def _with_rope(settings: Settings, **rope: object) -> Settings:
    return {**settings, "rope_parameters": {**settings["rope_parameters"], **rope}}


ARCHITECTURES: Mapping[str, GgufFamily] = {
    "mistral3": GgufFamily("ministral3", {}, _ministral3, HALVES),
}
