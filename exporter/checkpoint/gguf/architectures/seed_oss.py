"""Seed-OSS."""

from collections.abc import Mapping

from ..config import Keys, Settings
from ..family import GgufFamily
from .llama import llama


def _seed_oss(keys: Keys) -> Settings:
    return {**llama(keys), "attention_out_bias": keys.has("blk.0.attn_output.bias")}


ARCHITECTURES: Mapping[str, GgufFamily] = {
    "seed_oss": GgufFamily("seed_oss", {}, _seed_oss),
}
