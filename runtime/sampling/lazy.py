"""A grammar that begins later: after a thought, or where a mark opens a tool call."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from ..text.tokenizer import Tokenizer
    from .grammar import GrammarConstraint

_KEPT = 256  # characters of the text before, in which a mark may begin


@dataclass(frozen=True, kw_only=True)
class Beginning:
    """When a grammar begins to hold; before that, every token is allowed.

    Attributes:
        marks: it begins behind the first of these texts; without any, at once.
        at_start: a mark counts at the beginning of the answer only.
        thought: what opens and closes a thought; in a thought, nothing begins.
        in_thought: the prompt has opened a thought.
    """

    marks: tuple[str, ...] = ()
    at_start: bool = False
    thought: tuple[str, str] | None = None
    in_thought: bool = False


class LazyConstraint:
    """The constraint of one answer whose grammar begins later.

    Args:
        beginning: when.
        grammar: makes the constraint.
        tokenizer: the model's.
    """

    def __init__(
        self, beginning: Beginning, grammar: Callable[[], "GrammarConstraint"], tokenizer: "Tokenizer"
    ) -> None:
        self._beginning = beginning
        self._grammar = grammar
        self._tokenizer = tokenizer
        self._active: GrammarConstraint | None = None
        self._over = False
        self._thinking = beginning.in_thought
        self._text = ""
        self._first = True
        if not beginning.marks and not self._thinking:
            self._active = grammar()

    def allowed(self) -> npt.NDArray[np.bool_] | None:
        """[vocab]: True where the token may come next; None where all may.

        Raises:
            ExecutionError: the grammar grew beyond its limits.
        """
        if self._active is None or self._over:
            return None
        mask = self._active.allowed()
        if self._first and self._thought_id is not None:
            mask = mask.copy()
            mask[self._thought_id] = True
        return mask

    def advance(self, token_id: int) -> None:
        """The token was chosen.

        Raises:
            ExecutionError: it is not allowed, or the grammar grew beyond its limits.
        """
        first, self._first = self._first, False
        if self._active is not None and not (first and token_id == self._thought_id):
            if not self._over:
                self._active.advance(token_id)
            return
        self._active = None
        self._text = self._text[-_KEPT:] + self._tokenizer.decode([token_id], skip_special=False)
        self._look()

    @property
    def _thought_id(self) -> int | None:
        thought = self._beginning.thought
        if thought is None or self._beginning.in_thought or self._beginning.marks:
            return None
        found = self._tokenizer.id_of(thought[0])
        return found if found is not None and self._tokenizer.is_added(found) else None

    def _look(self) -> None:
        thought, marks = self._beginning.thought, self._beginning.marks
        if thought is not None and not self._thinking and thought[0] in self._text:
            self._thinking = True
            self._text = self._text.partition(thought[0])[2]
        if self._thinking and thought is not None:
            if thought[1] not in self._text:
                return
            self._thinking = False
            self._text = self._text.partition(thought[1])[2]
            if not marks:
                self._begin(self._text.lstrip())
                return
        found = [(self._text.find(mark), mark) for mark in marks if mark in self._text]
        if found:
            start, mark = min(found)
            if not self._beginning.at_start or not self._text[:start].strip():
                self._begin(self._text[start + len(mark) :])

    def _begin(self, rest: str) -> None:
        """Begin, where a token has written something of the answer to the grammar already."""
        self._active = self._grammar()
        ids = self._tokenizer.encode(rest, add_special_tokens=False) if rest else []
        self._over = not self._active.accepts(ids)  # written in another way: it goes on without the grammar
