"""Whether two bundles mean the same tokens by the same ids."""

from ..bundle.bundle import Bundle
from .tokenizer import Tokenizer

_FILE = "tokenizer.json"


def same_vocabulary(one: Bundle, other: Bundle, tokenizer: Tokenizer | None = None) -> bool:
    """By the hashes of their files where these are equal: reading a vocabulary is slow.

    Args:
        one: a bundle.
        other: another one.
        tokenizer: of `one`, where it is loaded already.
    """
    if one.manifest.files[_FILE].sha256 == other.manifest.files[_FILE].sha256:
        return True
    return (tokenizer or _open(one)).vocabulary() == _open(other).vocabulary()


def _open(bundle: Bundle) -> Tokenizer:
    return Tokenizer(bundle.path(_FILE), bundle.manifest.tokens.special)
