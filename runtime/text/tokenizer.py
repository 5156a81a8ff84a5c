"""Text to token ids and back: the tokenizer, the incremental detokenizer, and stop strings."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import BundleError, RequestError

_REPLACEMENT = "\ufffd"  # what decoding shows for bytes that are not, or not yet, UTF-8
_LONGEST_PART = 3  # bytes of an unfinished UTF-8 character
_WINDOW = 32  # tokens that are decoded together before the oldest are forgotten
_SHORT = 4096  # ids; what decodes more lets other threads run
_KEPT = 8  # tokens kept as context: more than any unfinished character
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
        """Token ids of a text; with `add_special_tokens` begun and ended as the model expects (a rendered chat has
        its special tokens already).

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

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of these ids; bytes that are not UTF-8 become U+FFFD.

        Raises:
            RequestError: an id is not one of a token.
        """
        kept = [i for i in ids if not (skip_special and i in self.special)]
        try:
            if len(kept) <= _SHORT:
                text: str = self._tokenizer.decode(kept, skip_special_tokens=False)
            else:
                (text,) = self._tokenizer.decode_batch([kept], skip_special_tokens=False)
        except (TypeError, OverflowError) as error:
            raise RequestError(f"Token ids are integers from 0 to {self.vocab_size - 1}: {error}.") from error
        return text

    def token(self, token_id: int) -> str:
        """One token as it is written in the vocabulary, for display; "" for an id without one."""
        return self._tokenizer.id_to_token(token_id) or ""

    def is_added(self, token_id: int) -> bool:
        """Whether this token stands beside the vocabulary of ordinary text, special or not."""
        return token_id in self._added

    def to_json(self) -> str:
        """The content of a tokenizer.json, as it is used here."""
        text: str = self._tokenizer.to_str()
        return text

    def id_of(self, token: str) -> int | None:
        """The id of a token written as in the vocabulary, or None."""
        found: int | None = self._tokenizer.token_to_id(token)
        return found


class Detokenizer:
    """EngineCore ids into text one by one, holding back what may still become another character.

    The pieces and `flush()`, joined, are the text of all ids decoded together.

    Args:
        tokenizer: decodes.
        keep: special ids that are written out nevertheless, such as those around tool calls.
    """

    def __init__(self, tokenizer: Tokenizer, keep: Collection[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._hidden = tokenizer.special.difference(keep)
        self._ids: list[int] = []
        self._shown = ""

    def push(self, token_id: int) -> str:
        """The text that this token completes; often its own, sometimes "", sometimes that of tokens before."""
        if token_id in self._hidden:
            return ""
        self._ids.append(token_id)
        text = self._decode(self._ids)
        if not text.startswith(self._shown):  # a decoder with byte tokens reread a run of them as broken
            self._ids, self._shown = [token_id], ""
            text = self._decode(self._ids)
        sure = _without_unfinished(text)
        new = sure[len(self._shown) :]
        self._shown = max(self._shown, sure, key=len)
        if len(self._ids) > _WINDOW:
            self._forget(len(text) - len(self._shown))
        return new

    def flush(self) -> str:
        """The rest, at the end: unfinished characters as U+FFFD. Afterwards it is as new."""
        rest = self._decode(self._ids)[len(self._shown) :]
        self._ids, self._shown = [], ""
        return rest

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special=False)

    def _forget(self, held: int) -> None:
        recent = self._ids[-_KEPT:]
        text = self._decode(recent)
        if text.startswith(_REPLACEMENT) and len(self._ids) < 2 * _WINDOW:
            return  # cut inside a character: another place is better, while there is time
        self._ids = recent
        self._shown = text[: len(text) - held]


@dataclass(frozen=True, slots=True)
class Stopped:
    """What `StopStrings.push` found: text that is safe to show, and the stop string that ended it, if any."""

    text: str
    stop: str | None = None


class StopStrings:
    """Watches streamed text for stop strings, wherever pieces begin and end.

    Text is held back only while it is the beginning of a stop string. Where several match, the one whose last
    character comes first wins (of those, the longest), as if the text came character by character.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""

    def push(self, text: str) -> Stopped:
        """Take the next piece. After a stop was found, what follows it is gone and nothing is held."""
        text = self._held + text
        self._held = ""
        found = [(start + len(stop), start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if found:
            _, start, stop = min(found)
            return Stopped(text[:start], stop)
        held = max((overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - held :]
        return Stopped(text[: len(text) - held])

    def flush(self) -> str:
        """The text still held back, when the answer ended for another reason."""
        held, self._held = self._held, ""
        return held


def overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `stop`."""
    longest = min(len(stop) - 1, len(text))
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)


def _without_unfinished(text: str) -> str:
    whole = text.rstrip(_REPLACEMENT)
    return text[: max(len(whole), len(text) - _LONGEST_PART)]


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
