"""What scores a text: a classification head, or the rows of the language model's head that mean yes and no."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from models.decoder.description import Decoder
from runtime.errors import CheckpointError, OptionError, UnsupportedError

from ..checkpoint.checkpoint import FloatArray, PackedTensor, TensorSource
from ..checkpoint.row_blocks import row_blocks

HEAD = "score"
Tensors = Mapping[str, TensorSource]


@dataclass(frozen=True)
class AnswerRows:
    """`[1, H]`: the head's row of the token yes, less that of no, times what logits are multiplied by."""

    name: str
    table: TensorSource
    yes: int
    no: int | None
    scale: float

    @property
    def shape(self) -> tuple[int, ...]:
        """One row of the table."""
        return (1, self.table.shape[1])

    @property
    def dtype(self) -> str:
        """For messages."""
        return self.table.dtype

    def read(self) -> FloatArray:
        """The row; blocks of the table that hold neither token are not read."""
        wanted = {self.yes: 1.0} | ({} if self.no is None else {self.no: -1.0})
        total, start = np.zeros(self.shape[1], np.float32), 0
        for block in row_blocks(self.table):
            inside = [token for token in wanted if start <= token < start + block.shape[0]]
            if inside:
                rows = block.read()
                total += sum(wanted[token] * rows[token - start] for token in inside)
            start += block.shape[0]
        return np.ascontiguousarray(self.scale * total[None], np.float32)

    def packed(self) -> PackedTensor | None:
        """Never: it is a difference."""
        return None


def score_tensors(tensors: Tensors) -> dict[str, TensorSource]:
    """Weight and bias of a classification head, by the names of the graph; empty where the checkpoint has none."""
    return {name.removeprefix("model."): it for name, it in tensors.items()
            if name.removeprefix("model.") in (f"{HEAD}.weight", f"{HEAD}.bias")}  # fmt: skip


def answer_head(
    decoder: Decoder, tensors: Tensors, names: tuple[str, str], tokens: tuple[int, int | None]
) -> dict[str, TensorSource]:
    """The head of a model that is asked for one token, as a classification head of one label.

    Args:
        decoder: the model.
        tensors: of the checkpoint.
        names: of the language model's head and of the embedding in it.
        tokens: ids that mean yes and no.

    Raises:
        UnsupportedError: a head that is more than a product.
        CheckpointError: an id outside the vocabulary.
    """
    if decoder.logit_softcap is not None or decoder.embedding_width is not None or decoder.head_bias:
        raise UnsupportedError(f"{decoder.model_type}: answer tokens are scored by heads that are a plain product.")
    outside = [token for token in tokens if token is not None and not 0 <= token < decoder.vocab_size]
    if outside:
        raise CheckpointError(f"the answer token {outside[0]} is outside the vocabulary of {decoder.vocab_size}.")
    table = tensors.get(names[0]) or tensors[names[1]]
    return {f"{HEAD}.weight": AnswerRows(f"{HEAD}.weight", table, *tokens, decoder.logit_scale)}


def answer_tokens(texts: tuple[str, ...], tokenizer: bytes) -> tuple[int, int | None]:
    """The ids of `yes,no`, each one token; a single text is scored by its own logit.

    Raises:
        OptionError: one is several tokens, or there are more than two.
    """
    from tokenizers import Tokenizer

    encode = Tokenizer.from_buffer(tokenizer).encode
    found = [encode(text, add_special_tokens=False).ids for text in texts]
    several = [text for text, ids in zip(texts, found, strict=True) if len(ids) != 1]
    if several or len(texts) not in (1, 2):
        raise OptionError(
            f"score_tokens: {several[0]!r} is not one token of this model." if several else
            "score_tokens: name the token that means yes, and the one that means no: yes,no"
        )  # fmt: skip
    return found[0][0], found[1][0] if len(found) > 1 else None


def labels_of(config: Mapping[str, Any], count: int) -> tuple[str, ...]:
    """`id2label` of a classifier, or () where it only numbers them or none is there."""
    stated = config.get("id2label") or {}
    try:
        labels = tuple(str(stated[str(i)] if str(i) in stated else stated[i]) for i in range(count))
    except (KeyError, TypeError):
        return ()
    return () if labels == tuple(f"LABEL_{i}" for i in range(count)) else labels


def without_head(decoder: Decoder, tensors: Tensors, head: str) -> tuple[Decoder, dict[str, TensorSource]]:
    """The model without its language model's head, which gives no embedding and no score of a label."""
    names = (head, head.removesuffix("weight") + "bias")
    return replace(decoder, head_bias=False), {name: it for name, it in tensors.items() if name not in names}
