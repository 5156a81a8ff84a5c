"""Arcee."""

from collections.abc import Mapping

from ..config import Keys, Settings
from ..family import GgufFamily
from ..orders import HALVES
from .llama import llama


def _arcee(keys: Keys) -> Settings:
    return {**llama(keys), "hidden_act": "relu2"}


ARCHITECTURES: Mapping[str, GgufFamily] = {
    "arcee": GgufFamily("arcee", {}, _arcee, HALVES),
}
