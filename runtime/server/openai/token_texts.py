"""Single tokens as OpenAI's logprobs show them: their text and their exact bytes."""

import codecs
import functools
from collections.abc import Sequence
from typing import Any

from ...sampling.logprobs import TokenLogprob
from ...text.tokenizer import Tokenizer

_LOWEST = -9999.0  # what JSON gets in place of minus infinity, as OpenAI writes it


class TokenTexts:
    """The bytes of every token of one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._table = _byte_alphabet() if '"ByteLevel"' in tokenizer.to_json() else None

    def content(self, token_id: int) -> bytes:
        """The token's bytes."""
        written = self._tokenizer.token(token_id)
        if self._tokenizer.is_added(token_id):
            return written.encode()
        if self._table is not None:
            return b"".join(self._table.get(letter, letter.encode()) for letter in written)
        if len(written) == 6 and written.startswith("<0x") and written.endswith(">"):
            return bytes.fromhex(written[3:5])
        return written.replace("\u2581", " ").encode()

    def text(self, token_id: int) -> str:
        """The token's text; of a part of a character, its bytes written as OpenAI does."""
        content = self.content(token_id)
        try:
            return content.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content)

    def chat(self, entries: Sequence[TokenLogprob]) -> dict[str, Any]:
        """`logprobs` of a choice of a chat."""

        def shown(token_id: int, logprob: float) -> dict[str, Any]:
            content = self.content(token_id)
            return {"token": self.text(token_id), "logprob": max(logprob, _LOWEST), "bytes": list(content)}

        rows = [
            shown(entry.token_id, entry.logprob) | {"top_logprobs": [shown(*other) for other in entry.top]}
            for entry in entries
        ]
        return {"content": rows, "refusal": None}

    def completion(
        self, entries: Sequence[TokenLogprob | None], start: int, first_ids: Sequence[int]
    ) -> dict[str, Any]:
        """`logprobs` of a choice of a completion.

        Args:
            entries: one per token; None where there is nothing before it.
            start: where the first one begins in the choice's text.
            first_ids: the tokens of entries that are None, in order.
        """
        first = iter(first_ids)
        ids = [next(first) if entry is None else entry.token_id for entry in entries]
        tokens = [self.text(token_id) for token_id in ids]
        offsets = self._offsets(ids, start)
        return {
            "tokens": tokens,
            "token_logprobs": [entry and max(entry.logprob, _LOWEST) for entry in entries],
            "top_logprobs": [entry and {self.text(i): max(p, _LOWEST) for i, p in entry.top} for entry in entries],
            "text_offset": offsets,
        }

    def _offsets(self, ids: Sequence[int], start: int) -> list[int]:
        """Where each token begins in the text, in characters; special tokens are not part of the text."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        offsets, place = [], start
        for token_id in ids:
            offsets.append(place)
            if token_id not in self._tokenizer.special:
                place += len(decoder.decode(self.content(token_id)))
        return offsets


@functools.cache
def _byte_alphabet() -> dict[str, bytes]:
    """The letters by which byte-level BPE writes bytes, as GPT-2 chose them."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (byte for byte in range(256) if byte not in shown)
    return {chr(b): bytes([b]) for b in shown} | {chr(256 + i): bytes([b]) for i, b in enumerate(others)}
