"""Incremental detokenization: ids become text one by one; unfinished characters are held back."""

from collections.abc import Collection

from .tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"  # what decoding shows for bytes that are not, or not yet, UTF-8
_LONGEST_PART = 3  # bytes of an unfinished UTF-8 character
_WINDOW = 32  # tokens that are decoded together before the oldest are forgotten
_KEPT = 8  # tokens kept as context: more than any unfinished character


class Detokenizer:
    """Turns ids into text one by one, holding back unfinished characters.

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
        """Return the text that this token completes: often its own, sometimes "", sometimes that of earlier tokens."""
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
        """Return the rest, unfinished characters as U+FFFD, and start afresh."""
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


def _without_unfinished(text: str) -> str:
    whole = text.rstrip(_REPLACEMENT)
    return text[: max(len(whole), len(text) - _LONGEST_PART)]
