"""Whether the head shares the embedding table: decided by the file, not by a default."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from models.description import Decoder

    from .checkpoint import TensorSource

HEAD, TABLE = "lm_head.weight", "model.embed_tokens.weight"


def tie_head(decoder: "Decoder", tensors: "Mapping[str, TensorSource]") -> "tuple[Decoder, Mapping[str, TensorSource]]":
    """Settle `tied_head`, and drop a head tensor that is a copy of the table.

    1. No head in the file: tied, whatever the config says; there is nothing else to multiply with.
    2. The config ties: tied, and a head in the file is ignored, as transformers does.
    3. Otherwise tied only if both tensors hold the same values, which saves one of them.
    """
    if HEAD not in tensors:
        return replace(decoder, tied_head=True), tensors
    if decoder.tied_head or (TABLE in tensors and _equal(tensors[HEAD], tensors[TABLE])):
        return replace(decoder, tied_head=True), {name: t for name, t in tensors.items() if name != HEAD}
    return decoder, tensors


def _equal(one: "TensorSource", other: "TensorSource") -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(np.array_equal(one.read(), other.read()))
