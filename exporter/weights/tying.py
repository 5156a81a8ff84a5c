"""Whether the head shares the embedding: decided by the values in the file, not by a default."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ..checkpoint.checkpoint import Renamed
from ..checkpoint.row_blocks import row_blocks

if TYPE_CHECKING:
    from models.decoder.description import Decoder
    from models.decoder.sources import Table

    from ..checkpoint import TensorSource

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"  # in the graph


def tie_head(
    decoder: "Decoder", sources: "Table", tensors: "Mapping[str, TensorSource]"
) -> "tuple[Decoder, Mapping[str, TensorSource]]":
    """Settle `tied_head` as transformers does, and drop a head that is a copy of the embedding.

    1. No head in the file: tied, whatever the config says; there is nothing else to multiply with.
    2. The config ties, and the file has a head only: it is the embedding too.
    3. Both hold the same values: tied, which saves one of them.
    4. Otherwise both are used, also where the config ties.
    """
    names = {name: sources[name].tensors[0] for name in (HEAD, EMBEDDING)}
    head, embedding = (tensors.get(name) for name in names.values())
    if head is None:
        return replace(decoder, tied_head=True), tensors
    others = {name: tensor for name, tensor in tensors.items() if tensor is not head}
    if embedding is None and decoder.tied_head:
        return decoder, {**others, names[EMBEDDING]: Renamed(names[EMBEDDING], head)}
    if embedding is not None and _equal(head, embedding, decoder.tied_head):
        return replace(decoder, tied_head=True), others
    return replace(decoder, tied_head=False), tensors


def _equal(one: "TensorSource", other: "TensorSource", expected: bool) -> bool:
    """Compares blocks of rows until two differ, so that different tensors are not read whole.

    Args:
        expected: the config ties; otherwise tensors of different types are taken for different ones.
    """
    if one.shape != other.shape or (one.dtype != other.dtype and not expected):
        return False
    blocks, others = list(row_blocks(one)), list(row_blocks(other))
    if [block.shape for block in blocks] != [block.shape for block in others]:
        return bool(np.array_equal(one.read(), other.read()))
    return all(np.array_equal(a.read(), b.read()) for a, b in zip(blocks, others, strict=True))
