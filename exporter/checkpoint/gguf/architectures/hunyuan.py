"""Hunyuan."""

from collections.abc import Mapping

from ..family import GgufFamily, biased

ARCHITECTURES: Mapping[str, GgufFamily] = {
    "hunyuan-dense": GgufFamily("hunyuan_v1_dense", {}, biased),
}
