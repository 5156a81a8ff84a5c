"""A bundle's tokenizer against transformers' own of the same folder."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from runtime.errors import VerificationError


def require_same_tokens(folder: Path, samples: Iterable[tuple[str, Sequence[int]]], as_stored: bool) -> list[str]:
    """Tokenize what the reference tokenized.

    Args:
        folder: of the bundle.
        samples: texts and the reference's ids.
        as_stored: the bundle's tokenizer.json is the checkpoint's own, so that another reading of it is no fault of the
            export.

    Returns:
        what a user should know.

    Raises:
        VerificationError: other ids.
    """
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    for text, expected in samples:
        found = tokenizer.encode(text, add_special_tokens=False).ids
        if found == list(expected):
            continue
        said = f"{text!r} is {found} by the bundle's tokenizer.json, and {list(expected)} by transformers' tokenizer"
        if not as_stored:
            raise VerificationError(
                f"{said}. Nothing was written. Make one file of both by transformers' "
                "AutoTokenizer.from_pretrained(folder).save_pretrained(folder), and export again."
            )
        return [f"{said}: transformers does not read this tokenizer.json as it is written."]
    return []
