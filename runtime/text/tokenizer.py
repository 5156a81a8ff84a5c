"""Text to token ids and back: a bundle's tokenizer.json."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..errors import BundleError, RequestError

_SHORT = 4096  # ids; what decodes more lets other threads run
# Marks that carry meaning for whoever reads the answer are text, even where a tokenizer calls them special.
_MARKS = frozenset(
    {"<tool_call>", "</tool_call>", "<|tool_call|>", "<|/tool_call|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"}
    | {"<|python_tag|>", "<think>", "</think>"}
)


class Tokenizer:
    """A bundle's tokenizer.json. Truncation and padding are off, whatever the file says.

    Args:
        path: the file.
        special: ids that decoding skips, besides those that the file itself marks as special.

    Attributes:
        special: ids that decoding skips; never the marks around tool calls and thoughts.
        control: ids that the file itself marks as special.
        vocab_size: number of tokens.

    Raises:
        BundleError: the file cannot be read, or is not a tokenizer.
    """

    def __init__(self, path: str | Path, special: Iterable[int] = ()) -> None:
        self._tokenizer = _load(Path(path))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        added = self._tokenizer.get_added_tokens_decoder()
        self._added = frozenset(added)
        self.control = frozenset(i for i, token in added.items() if token.special)
        marks = {i for i, token in added.items() if token.content in _MARKS}
        self.special: frozenset[int] = frozenset({*special, *self.control}) - marks
        self.vocab_size: int = self._tokenizer.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text. `add_special_tokens` adds those that the model expects at its ends; a rendered chat has
        them already.

        Raises:
            RequestError: not a string, or one with half of a surrogate pair.
        """
        try:  # the plain `encode` holds the interpreter's lock throughout: a long prompt would stop every other thread
            (encoding,) = self._tokenizer.encode_batch_fast([_only_text(text)], add_special_tokens=add_special_tokens)
            ids: list[int] = encoding.ids
        except TypeError as error:
            what = "it holds half of a surrogate pair" if isinstance(text, str) else f"it is a {type(text).__name__}"
            raise RequestError(f"The prompt is not a text of Unicode characters: {what}.") from error
        except Exception as error:  # the library raises bare Exception
            raise RequestError(f"The prompt cannot be tokenized: {error}.") from error
        return ids

    def encode_pair(self, first: str, second: str) -> list[int]:
        """Token ids of two texts joined as this tokenizer joins pairs, special tokens included.

        Raises:
            RequestError: not texts, or one with half of a surrogate pair.
        """
        try:
            (encoding,) = self._tokenizer.encode_batch_fast([(_only_text(first), _only_text(second))])
        except Exception as error:  # the library raises bare Exception
            raise RequestError(f"The pair cannot be tokenized: {error}.") from error
        ids: list[int] = encoding.ids
        return ids

    def cut(self, text: str, count: int) -> str:
        """The text without its last `count` tokens; "" if it has no more."""
        offsets = self._tokenizer.encode(_only_text(text), add_special_tokens=False).offsets
        return text[: offsets[-count][0]] if count < len(offsets) else ""

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of these ids; bytes that are not UTF-8 become U+FFFD.

        Raises:
            RequestError: an id is not one of a token.
        """
        kept = [i for i in ids if i not in self.special] if skip_special else list(ids)
        try:
            if len(kept) <= _SHORT:
                text: str = self._tokenizer.decode(kept, skip_special_tokens=False)
            else:
                (text,) = self._tokenizer.decode_batch([kept], skip_special_tokens=False)
        except (TypeError, OverflowError) as error:
            raise RequestError(f"Token ids are integers from 0 to {self.vocab_size - 1}: {error}.") from error
        return text

    def vocabulary(self) -> dict[str, int]:
        """Every token with its id, added ones included."""
        found: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        return found

    def token(self, token_id: int) -> str:
        """One token as it is written in the vocabulary, for display; "" for an id without one."""
        return self._tokenizer.id_to_token(token_id) or ""

    def is_added(self, token_id: int) -> bool:
        """Whether this token was added to the vocabulary of ordinary text, special or not."""
        return token_id in self._added

    def to_json(self, below: int | None = None) -> str:
        """The content of a tokenizer.json, as it is used here.

        Args:
            below: leave out tokens with this id or a higher one; texts are then spelled with the others.
        """
        text: str = self._tokenizer.to_str()
        return (
            text if below is None or below >= self.vocab_size else json.dumps(_without_tokens(json.loads(text), below))
        )

    def id_of(self, token: str) -> int | None:
        """The id of a token written as in the vocabulary, or None."""
        found: int | None = self._tokenizer.token_to_id(token)
        return found


def _without_tokens(content: dict[str, Any], below: int) -> dict[str, Any]:
    """A tokenizer.json without the tokens from id `below` on, and without the merges that make them."""
    model = dict(content["model"])
    if isinstance(model["vocab"], list):
        model["vocab"] = model["vocab"][:below]  # Unigram: pieces in the order of their ids
    else:
        model["vocab"] = {token: i for token, i in model["vocab"].items() if i < below}
    if "merges" in model:
        pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"])
        model["merges"] = [pair for pair in pairs if "".join(pair) in model["vocab"]]
    added = [token for token in content["added_tokens"] if token["id"] < below]
    return {**content, "model": model, "added_tokens": added}


def _only_text(text: Any) -> str:
    if not isinstance(text, str):  # the library would take a pair for two texts
        raise TypeError
    return text


def _load(path: Path) -> Any:
    from tokenizers import Tokenizer as HuggingFaceTokenizer

    try:
        return HuggingFaceTokenizer.from_buffer(path.read_bytes())
    except OSError as error:
        raise BundleError(f"{path}: cannot be read ({error.strerror}). Copy or export the bundle again.") from error
    except Exception as error:  # the library raises bare Exception
        raise BundleError(f"{path}: not a tokenizer ({error}). Copy or export the bundle again.") from error
