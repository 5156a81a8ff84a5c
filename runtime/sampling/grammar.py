"""Structured output: answers that are JSON of a schema, match a regular expression or grammar, or are one of a choice.

It fails closed: what does not compile, or asks for something that cannot be enforced, is a refused request.
"""

import functools
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..errors import ExecutionError, MissingDependencyError, RequestError
from .lazy import Beginning, LazyConstraint
from .schema import closed

if TYPE_CHECKING:
    from ..text.tokenizer import Tokenizer

_MAX_SOURCE = 1 << 18  # characters; larger grammars take seconds to compile
_MAX_COMPILED = 32  # grammars kept per model
_KINDS = ("json_schema", "json_object", "regex", "lark", "choice")
# One space, or a new line with its indentation: a model cannot fill its answer with blanks.
JSON_OPTIONS = {"whitespace_pattern": r" |\n {0,16}"}


@dataclass(frozen=True, kw_only=True)
class StructuredOutput:
    """What an answer must be; exactly one is given.

    Args:
        json_schema: JSON of this schema, given as a mapping, as JSON text, or as a pydantic model or TypeAdapter.
        json_object: any JSON object.
        regex: text that matches as a whole; without look-around and back-references.
        lark: text of this grammar in llguidance's dialect of Lark, whose start rule is `start`.
        choice: one of these texts.
        beginning: when it begins to hold, beside the kinds above: after a thought, or behind a mark; None is at once.

    Objects have the keys that their schema names, unless it opens them (see `schema`).

    Raises:
        RequestError: none or several are given, or one is malformed.

    Example:
        >>> StructuredOutput(choice=("yes", "no")).kind
        'choice'
    """

    json_schema: Mapping[str, Any] | str | type[Any] | None = None
    json_object: bool = False
    regex: str | None = None
    lark: str | None = None
    choice: Sequence[str] | None = None
    beginning: Beginning | None = None

    def __post_init__(self) -> None:
        given = [kind for kind in _KINDS if getattr(self, kind) not in (None, False)]
        if len(given) != 1:
            raise RequestError(f"Structured output takes exactly one of {', '.join(_KINDS)}, got {given or 'none'}.")
        object.__setattr__(self, given[0], _checked(given[0], getattr(self, given[0])))

    @property
    def kind(self) -> str:
        """Which of them is given."""
        return next(kind for kind in _KINDS if getattr(self, kind) not in (None, False))

    @property
    def source(self) -> str:
        """What is given, as text."""
        value = getattr(self, self.kind)
        return value if isinstance(value, str) else json.dumps(value)


class Grammars:
    """Compiles structured output for one model; may be called from several threads.

    Args:
        tokenizer: the model's.
        vocab_size: length of its logits, which may be longer or shorter than the tokenizer's vocabulary.
        eos_ids: the tokens by which an answer ends.
    """

    def __init__(self, tokenizer: "Tokenizer", vocab_size: int, eos_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_ids = list(eos_ids)
        self._lock = threading.Lock()
        self._compiled = functools.lru_cache(_MAX_COMPILED)(self._compile)

    def prepare(self) -> None:
        """Read the vocabulary now. It takes up to seconds and lets no other thread run: the first request that needs it
        would stop all others. Does nothing where structured output cannot be had."""
        with self._lock, suppress(RequestError, MissingDependencyError):
            _ = self._vocabulary

    def constraint(self, wanted: StructuredOutput) -> "GrammarConstraint | LazyConstraint":
        """The constraint for one answer, at its beginning.

        Raises:
            RequestError: it does not compile, or cannot be enforced.
            MissingDependencyError: llguidance is not installed.
        """
        with self._lock:
            matcher = self._compiled(wanted.kind, wanted.source)

        def begun() -> GrammarConstraint:
            with self._lock:
                return GrammarConstraint(matcher.deep_copy(), self._vocab_size, self._eos_ids)

        if wanted.beginning is not None:
            return LazyConstraint(wanted.beginning, begun, self._tokenizer)
        return begun()

    def _compile(self, kind: str, source: str) -> Any:
        matcher = _llguidance().LLMatcher(self._vocabulary, _grammar(kind, source), log_level=0)
        if matcher.is_error():
            raise RequestError(f"structured output: {kind}: {_first_lines(matcher.get_error())}")
        if warnings := matcher.get_grammar_warnings():
            raise RequestError(f"structured output: {kind}: cannot be enforced: {_first_lines(warnings[0])}")
        return matcher

    @functools.cached_property
    def _vocabulary(self) -> Any:
        if not self._eos_ids:
            raise RequestError("structured output: this model has no end-of-sequence token, so no answer could end.")
        # A tokenizer may have more tokens than the logits: nothing can be written with those.
        described = self._tokenizer.to_json(below=self._vocab_size)
        return _llguidance().LLTokenizer(described, self._vocab_size, self._eos_ids)


class GrammarConstraint:
    """Which tokens may come next in one answer; used by `Sampler`."""

    def __init__(self, matcher: Any, vocab_size: int, eos_ids: Sequence[int]) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._eos_ids = list(eos_ids)

    @property
    def complete(self) -> bool:
        """Whether the answer could end here."""
        return bool(self._matcher.is_accepting())

    def allowed(self) -> npt.NDArray[np.bool_]:
        """[vocab]: True where the token may come next.

        Raises:
            ExecutionError: the grammar grew beyond its limits.
        """
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._require_health()
        mask = np.unpackbits(bits, count=self._vocab_size, bitorder="little").view(np.bool_)
        if not self.complete:  # llguidance takes the end token for text that is spelled like it
            mask[self._eos_ids] = False
        return mask

    def advance(self, token_id: int) -> None:
        """The token was chosen.

        Raises:
            ExecutionError: it is not allowed, or the grammar grew beyond its limits.
        """
        self._matcher.consume_token(token_id)
        self._require_health()

    def accepts(self, token_ids: Sequence[int]) -> bool:
        """Advance by tokens that were written before the grammar began; False if it does not allow them."""
        return int(self._matcher.try_consume_tokens(list(token_ids))) == len(token_ids)

    def _require_health(self) -> None:
        if self._matcher.is_error():
            raise ExecutionError(
                f"structured output: the answer cannot go on: {_first_lines(self._matcher.get_error())}"
            )


def _checked(kind: str, value: Any) -> Any:
    try:
        checked = _CHECKS[kind](value)
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"structured output: {kind}: {_first_lines(str(error))}") from error
    if sum(map(len, checked if isinstance(checked, tuple) else [str(checked)])) > _MAX_SOURCE:
        raise RequestError(f"structured output: {kind} is longer than {_MAX_SOURCE} characters.")
    return checked


def schema_method(value: Any) -> Callable[[], Any] | None:
    """What gives the schema of a pydantic model or TypeAdapter; None for anything else."""
    found = getattr(value, "model_json_schema", None) or getattr(value, "json_schema", None)
    return found if callable(found) and not isinstance(value, Mapping) else None


def _schema_text(value: Any) -> str:
    described = schema_method(value)
    schema = json.loads(value) if isinstance(value, str) else described() if described else value
    if not isinstance(schema, Mapping):
        raise TypeError("a schema is a JSON object")
    return json.dumps(schema, allow_nan=False)


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError(f"expected text, got {value!r}")
    return value


def _true(value: Any) -> bool:
    if value is not True:
        raise TypeError(f"expected true, got {value!r}")
    return True


def _texts(value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        raise TypeError(f"expected a list of texts, got {value!r}")
    return tuple(map(_text, value))


def _grammar(kind: str, source: str) -> str:
    matcher = _llguidance().LLMatcher
    if kind == "regex":
        grammar: str = matcher.grammar_from_regex(source)
    elif kind == "lark":
        grammar = matcher.grammar_from_lark(source)
    elif kind == "choice":
        grammar = matcher.grammar_from_lark("start: " + " | ".join(json.dumps(text) for text in json.loads(source)))
    else:
        schema = json.dumps(closed(json.loads(source))) if kind == "json_schema" else '{"type": "object"}'
        grammar = matcher.grammar_from_json_schema(schema, overrides=JSON_OPTIONS)
    return grammar


def _first_lines(words: str) -> str:
    return " ".join(words.split())[:500]


def _llguidance() -> Any:
    try:
        import llguidance
    except ImportError as error:
        raise MissingDependencyError(
            "Structured output needs the package llguidance: pip install 'onnxlm[structured]'."
        ) from error
    return llguidance


_CHECKS = {"json_schema": _schema_text, "json_object": _true, "regex": _text, "lark": _text, "choice": _texts}
