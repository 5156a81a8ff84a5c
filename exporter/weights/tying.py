"""Whether the head shares the embedding table: decided by the file, not by a default."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from models.decoder.description import Decoder
    from models.decoder.sources import Table

    from ..checkpoint import TensorSource

HEAD, TABLE = "lm_head.weight", "model.embed_tokens.weight"  # in the graph


def tie_head(
    decoder: "Decoder", sources: "Table", tensors: "Mapping[str, TensorSource]"
) -> "tuple[Decoder, Mapping[str, TensorSource]]":
    """Settle `tied_head`, and drop a head tensor that is a copy of the table.

    1. No head in the file: tied, whatever the config says; there is nothing else to multiply with.
    2. The config ties: tied, and a head in the file is ignored, as transformers does.
    3. Otherwise tied only if both tensors hold the same values, which saves one of them.
    """
    head, table = (tensors.get(sources[name].tensors[0]) for name in (HEAD, TABLE))
    if head is None:
        return replace(decoder, tied_head=True), tensors
    if decoder.tied_head or (table is not None and _equal(head, table)):
        return replace(decoder, tied_head=True), {name: t for name, t in tensors.items() if t is not head}
    return decoder, tensors


def _equal(one: "TensorSource", other: "TensorSource") -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(np.array_equal(one.read(), other.read()))
