"""SentencePiece BPE: spaces are the character ▁, words are not cut apart, unknown characters fall back to bytes."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from runtime.errors import CheckpointError

from .vocabulary import Vocabulary, add_ends, add_tokens

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SPACE = "▁"
Style = Literal["plain", "gemma"]

# By general.architecture; nothing else in the file says which.
STYLES: Mapping[str, Style] = {"gemma": "gemma", "gemma2": "gemma", "gemma3": "gemma"}


def sentencepiece_tokenizer(vocabulary: Vocabulary) -> "Tokenizer":
    """The tokenizer of a GGUF file whose `tokenizer.ggml.model` is "llama"."""
    style = STYLES.get(str(vocabulary.metadata.get("general.architecture")), "plain")
    tokenizer = _tokenizer(vocabulary, style)
    add_ends(tokenizer, vocabulary, bos=True)
    return tokenizer


def gemma4_tokenizer(vocabulary: Vocabulary) -> "Tokenizer":
    """The tokenizer of a GGUF file whose `tokenizer.ggml.model` is "gemma4"; only its chat template writes bos."""
    return _tokenizer(vocabulary, "gemma")


def spelled_tokenizer(vocabulary: Vocabulary) -> "Tokenizer":
    """The tokenizer of a file that calls itself byte-level ("gpt2") and has ▁ for spaces, such as Sarvam's."""
    tokenizer = _tokenizer(vocabulary, "gemma")
    add_ends(tokenizer, vocabulary, bos=False)
    return tokenizer


def _tokenizer(vocabulary: Vocabulary, style: Style) -> "Tokenizer":
    from tokenizers import Tokenizer, models

    texts = [SPACE * len(text) if style == "gemma" and not text.strip(" ") else text for text in vocabulary.tokens]
    ids = {text: i for i, text in enumerate(texts)}
    merges = vocabulary.merges
    if merges is None:
        merges = _implied_merges(ids, _ranks(vocabulary, style))
    unknown = vocabulary.role("unknown")
    model = models.BPE(
        ids, merges, byte_fallback=True, fuse_unk=True, unk_token=None if unknown is None else texts[unknown]
    )
    tokenizer = Tokenizer(model)
    _dress(tokenizer, style, prefix=vocabulary.get("add_space_prefix", True) is not False)
    add_tokens(tokenizer, vocabulary, texts)
    return tokenizer


def _ranks(vocabulary: Vocabulary, style: Style) -> list[float]:
    """What orders the merges, greater first: the scores, or for Gemma the position."""
    if style == "gemma":
        return [-float(i) for i in range(len(vocabulary.tokens))]
    scores = [float(score) for score in vocabulary.get("scores", ())]
    if len(scores) != len(vocabulary.tokens):
        raise CheckpointError(
            f"{vocabulary.where}: {len(scores)} entries in tokenizer.ggml.scores for {len(vocabulary.tokens)} tokens."
        )
    return scores


def _implied_merges(ids: Mapping[str, int], ranks: list[float]) -> list[tuple[str, str]]:
    """Every way to cut a token into two tokens is a merge; the token of the greatest rank comes first."""
    cuts = [
        (ranks[i], at, len(text) - at, text[:at], text[at:])
        for text, i in ids.items()
        for at in range(1, len(text))
        if text[:at] in ids and text[at:] in ids
    ]
    cuts.sort(key=lambda cut: cut[:3], reverse=True)
    return [(left, right) for *_, left, right in cuts]


def _dress(tokenizer: "Tokenizer", style: Style, prefix: bool) -> None:
    """What happens to spaces on the way in and out.

    Args:
        prefix: every text gets a space in front, whatever it begins with, and so does what follows a token that is
            matched whole; as SentencePiece and llama.cpp do.
    """
    from tokenizers import decoders, normalizers, pre_tokenizers

    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefix and style != "gemma":
        steps.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(steps)
    if style == "gemma":
        tokenizer.normalizer = normalizers.Replace(" ", SPACE)
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    else:
        spaces = normalizers.Replace(" ", SPACE)
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces]) if prefix else spaces
