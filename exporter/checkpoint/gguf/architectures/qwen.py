"""Qwen 2 and 3."""

from collections.abc import Mapping

from ..family import GgufFamily, biased, standard

ARCHITECTURES: Mapping[str, GgufFamily] = {
    "qwen2": GgufFamily("qwen2", {}, standard),
    "qwen3": GgufFamily("qwen3", {}, biased),
}
