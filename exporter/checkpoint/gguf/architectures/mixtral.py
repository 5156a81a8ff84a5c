"""Mixtral: the architecture "llama" with experts."""

from ..config import Keys, Settings
from ..family import GgufFamily, counts, standard
from ..orders import HALVES


def _mixtral(keys: Keys) -> Settings:
    return {**standard(keys), **counts(keys, "num_local_experts")}


MIXTRAL = GgufFamily("mixtral", {}, _mixtral, HALVES)
