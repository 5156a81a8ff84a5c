"""Texts and pairs of texts as token ids, ready for the graph: with the prompt in front, not longer than allowed."""

from collections.abc import Sequence

from ..bundle.sequence_task import SequenceTask
from ..errors import PromptTooLongError, RequestError
from ..text.tokenizer import Tokenizer

Text = str | Sequence[int]


class TextReader:
    """Reads texts for one task.

    Args:
        task: of the bundle.
        tokenizer: of the bundle.
        vocab_size: of the model.
    """

    def __init__(self, task: SequenceTask, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._task, self._tokenizer, self._vocab_size = task, tokenizer, vocab_size
        self._ends = _ends(tokenizer)

    def ids(self, text: Text, prompt: str = "", *, truncate: bool = False) -> list[int]:
        """The ids of a text with `prompt` in front, begun and ended as the model expects; token ids stay as they are.

        Raises:
            RequestError: no text, an empty one, or an id that is none.
            PromptTooLongError: more tokens than the model reads; with `truncate` the end of the text is left out.
        """
        if not isinstance(text, str):
            return self._fitting(self._checked(text), truncate, ends=0)
        ids = self._tokenizer.encode(prompt + text)
        if not ids:
            raise RequestError("input: the text is empty, and there is nothing to read.")
        return self._fitting(ids, truncate, self._ends)

    def prompt(self, name: str | None) -> str:
        """The text that is put in front: by its name in the bundle, or the default one.

        Raises:
            RequestError: there is no prompt of that name.
        """
        name = self._task.default_prompt if name is None else name
        if name is None:
            return ""
        if name not in self._task.prompts:
            known = ", ".join(map(repr, self._task.prompts)) or "none"
            raise RequestError(f"prompt_name {name!r:.80} is not one of this model's prompts: {known}.")
        return self._task.prompts[name]

    def pair(self, query: str, document: str, instruction: str | None = None, *, truncate: bool = False) -> list[int]:
        """Query and document as one text, by the bundle's pair template, or as the tokenizer joins pairs.

        Raises:
            RequestError: an instruction where the model takes none.
            PromptTooLongError: more tokens than the model reads; with `truncate` the end of the document is left out.
        """
        for name, text in (("query", query), ("document", document)):
            if not isinstance(text, str):
                raise RequestError(f"{name} must be a text, got {type(text).__name__}.")
        while True:
            ids = self._joined(query, document, instruction)
            excess = len(ids) - self._task.max_tokens
            if excess <= 0:
                return ids
            shorter = self._tokenizer.cut(document, excess) if truncate else document
            if shorter == document or not shorter:
                raise self._too_long(len(ids))
            document = shorter

    def _joined(self, query: str, document: str, instruction: str | None) -> list[int]:
        template = self._task.pair_template
        if instruction is not None and (template is None or "{instruction}" not in template):
            raise RequestError("instruction: this model's pairs have no place for one. Leave it out.")
        if template is None:
            return self._tokenizer.encode_pair(query, document)
        texts = {"{instruction}": instruction or self._task.instruction or "", "{query}": query, "{document}": document}
        parts = [template]
        for place in texts:  # split, not replaced one after the other: a query may hold the word {document}
            parts = [piece for part in parts for piece in _around(part, place)]
        return self._tokenizer.encode("".join(texts.get(part, part) for part in parts))

    def _checked(self, ids: Sequence[int]) -> list[int]:
        if not len(ids):
            raise RequestError("input: a list of token ids is empty, and there is nothing to read.")
        for i in ids:
            if isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < self._vocab_size:
                raise RequestError(f"input: token ids are integers from 0 to {self._vocab_size - 1}, got {i!r:.40}.")
        return list(ids)

    def _fitting(self, ids: list[int], truncate: bool, ends: int) -> list[int]:
        most = self._task.max_tokens
        over = next((i for i in ids if i >= self._vocab_size), None)
        if over is not None:
            raise RequestError(f"input: the text has the token {over}, which the model has no embedding for.")
        if len(ids) <= most:
            return ids
        if not truncate or ends >= most:
            raise self._too_long(len(ids))
        return ids[: most - ends] + (ids[-ends:] if ends else [])

    def _too_long(self, count: int) -> PromptTooLongError:
        return PromptTooLongError(
            f"The text has {count} tokens, and this model reads at most {self._task.max_tokens}. Split it, or let its "
            "end be left out (truncate)."
        )


def _ends(tokenizer: Tokenizer) -> int:
    """How many special tokens stand behind a text."""
    probe, plain = tokenizer.encode("a"), tokenizer.encode("a", add_special_tokens=False)
    extra = len(probe) - len(plain)
    return next((tail for tail in range(extra + 1) if probe[extra - tail : len(probe) - tail] == plain), 0)


def _around(part: str, place: str) -> list[str]:
    before, found, after = part.partition(place)
    return [before, place, after] if found else [part]
