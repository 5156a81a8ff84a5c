"""Byte-level BPE: text is cut into words, words into bytes, bytes are merged."""

from typing import TYPE_CHECKING, Any

from runtime.errors import CheckpointError, UnsupportedError

from .splits import REFUSED, SENTENCEPIECE, WORD_SPLITS, WordSplit
from .vocabulary import WRITTEN_BYTES, Vocabulary, add_ends, add_tokens, byte_alphabet

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def byte_level_tokenizer(vocabulary: Vocabulary) -> "Tokenizer":
    """The tokenizer of a GGUF file whose `tokenizer.ggml.model` is "gpt2"."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    split = _word_split(vocabulary)
    texts = _spelled(vocabulary)
    ids = {text: i for i, text in enumerate(texts)}
    added = set(vocabulary.added)
    if vocabulary.merges is None and any(len(text) > 1 for i, text in enumerate(texts) if i not in added):
        raise CheckpointError(f"{vocabulary.where}: metadata tokenizer.ggml.merges is missing.")
    tokenizer = Tokenizer(models.BPE(ids, vocabulary.merges or [], ignore_merges=split.ignore_merges))
    if split.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizer(split)
    tokenizer.decoder = decoders.ByteLevel()
    add_tokens(tokenizer, vocabulary, texts)
    add_ends(tokenizer, vocabulary, bos=split.add_bos)
    return tokenizer


def pre_tokenizer(split: WordSplit) -> Any:
    """The splitting part of tokenizer.json."""
    from tokenizers import Regex, pre_tokenizers

    def cut(patterns: tuple[str, ...]) -> list[Any]:
        return [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]

    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    first = [pre_tokenizers.Punctuation("contiguous")] if split.punctuation else []
    return pre_tokenizers.Sequence([*first, *cut(split.patterns), to_bytes, *cut(split.byte_patterns)])


def _word_split(vocabulary: Vocabulary) -> WordSplit:
    name = vocabulary.get("pre")
    if name in REFUSED:
        raise UnsupportedError(
            f"{vocabulary.where}: tokenizer.ggml.pre is {name!r}: {REFUSED[name]}. Export from the original Hugging "
            "Face folder, or convert the file again with a current converter."
        )
    if name not in WORD_SPLITS:
        raise UnsupportedError(
            f"{vocabulary.where}: tokenizer.ggml.pre is {name!r}; supported are "
            f"{', '.join(sorted({*WORD_SPLITS, *SENTENCEPIECE}))}. "
            "Export from the original Hugging Face folder, or convert the file again with a current converter."
        )
    return WORD_SPLITS[name]


def _spelled(vocabulary: Vocabulary) -> list[str]:
    """Ordinary tokens in the byte alphabet, as merging needs them; added ones stay as they are in the text."""
    added, alphabet = set(vocabulary.added), byte_alphabet()
    return [
        text if i in added or WRITTEN_BYTES.issuperset(text) else "".join(alphabet[byte] for byte in text.encode())
        for i, text in enumerate(vocabulary.tokens)
    ]
