"""What a caller may choose: SamplingParams for one request, EngineOptions for the engine. Frozen and validated."""

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from .errors import OptionError, RequestError
from .sampling.grammar import StructuredOutput, schema_method

MAX_CHOICES = 128
_MAX_SEED = 2**64 - 1


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How one request is sampled, and when it ends.

    None in `temperature`, `top_k`, `top_p`, `min_p` or `repetition_penalty` means the model's own default, from
    generation_config.json (greedy, and everything off, where the model has none): see `with_model_defaults`.

    Args:
        max_tokens: Most tokens to generate. 0 only scores the prompt.
        temperature: 0 is greedy; above, the distribution is sampled.
        top_k: Keep the k likeliest tokens, and those exactly as likely as the k-th; 0 keeps all.
        top_p: Keep the fewest likeliest tokens whose probability reaches this; 1 keeps all.
        min_p: Keep tokens at least this share as likely as the likeliest one; 0 keeps all.
        seed: Makes sampling repeatable; None draws fresh entropy, reported back.
        stop: Text that ends the generation and is not part of the result.
        stop_token_ids: Ids that end the generation, besides the model's end-of-sequence ids.
        min_tokens: No stop id can be sampled before this many tokens, and stop strings are not looked for.
        ignore_eos: Go on after the model's end-of-sequence ids; `stop_token_ids` still end it.
        repetition_penalty: Divides positive and multiplies negative logits of tokens seen so far; 1 is off.
        presence_penalty: Subtracted from the logit of each token of the output so far.
        frequency_penalty: Subtracted once per occurrence in the output so far.
        logit_bias: Added to the logits of these ids; -100 practically bans an id.
        logprobs: How many alternatives to report per generated token (0: the token alone; None: none at all).
        prompt_logprobs: The same for each prompt token.
        n: How many independent answers.
        adapter: Name of the LoRA adapter to answer with, of those that the model was loaded with.
        structured: What the answers must be: JSON of a schema, and the like. A pydantic model stands for its schema.

    Raises:
        RequestError: a value is out of range, not finite, or contradicts another.
    """

    max_tokens: int = 256
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    min_tokens: int = 0
    ignore_eos: bool = False
    repetition_penalty: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    n: int = 1
    structured: StructuredOutput | None = None
    adapter: str | None = None

    def __post_init__(self) -> None:
        try:
            for name, value in self._checked().items():
                object.__setattr__(self, name, value)
        except ValueError as error:
            raise RequestError(f"{error}.") from None

    def _checked(self) -> dict[str, Any]:
        max_tokens = integer("max_tokens", self.max_tokens, 0)
        min_tokens = integer("min_tokens", self.min_tokens, 0)
        if min_tokens > max_tokens:
            raise ValueError(f"min_tokens {min_tokens} is more than max_tokens {max_tokens}")
        if self.adapter is not None and not isinstance(self.adapter, str):
            raise ValueError(f"adapter must be the name of a LoRA adapter, got {self.adapter!r:.80}")
        if not isinstance(self.ignore_eos, bool):
            raise ValueError(f"ignore_eos must be true or false, got {self.ignore_eos!r}")
        return {
            "max_tokens": max_tokens,
            "min_tokens": min_tokens,
            "temperature": _optional(real, "temperature", self.temperature, 0, 100),
            "top_k": _optional(integer, "top_k", self.top_k, 0),
            "top_p": None if self.top_p is None else real("top_p", self.top_p, 0, 1, above=True),
            "min_p": _optional(real, "min_p", self.min_p, 0, 1),
            "seed": _optional(integer, "seed", self.seed, 0, _MAX_SEED),
            "stop": _stop_strings(self.stop),
            "stop_token_ids": tuple(
                integer("stop_token_ids", i, 0) for i in _items("stop_token_ids", self.stop_token_ids)
            ),
            "repetition_penalty": _optional(real, "repetition_penalty", self.repetition_penalty, 0.01, 100),
            "presence_penalty": real("presence_penalty", self.presence_penalty, -100, 100),
            "frequency_penalty": real("frequency_penalty", self.frequency_penalty, -100, 100),
            "logit_bias": _logit_bias(self.logit_bias),
            "logprobs": _optional(integer, "logprobs", self.logprobs, 0),
            "prompt_logprobs": _optional(integer, "prompt_logprobs", self.prompt_logprobs, 0),
            "n": integer("n", self.n, 1, MAX_CHOICES),
            "structured": _optional(_structured, "structured", self.structured, self.ignore_eos or min_tokens > 0),
        }

    @classmethod
    def names(cls) -> frozenset[str]:
        """The names of all parameters."""
        return frozenset(one.name for one in fields(cls))

    def with_changes(self, changes: Mapping[str, Any]) -> "SamplingParams":
        """These parameters with some values replaced, as keyword arguments of a call.

        Raises:
            OptionError: a name that is no parameter.
            RequestError: a value is out of range.
        """
        unknown = sorted(changes.keys() - self.names())
        if unknown:
            raise OptionError(f"{unknown[0]!r} is no sampling parameter. There are: {', '.join(sorted(self.names()))}.")
        return replace(self, **changes) if changes else self

    def with_model_defaults(self, generation_config: Mapping[str, Any]) -> "SamplingParams":
        """These parameters with every None replaced by the model's default, or by the neutral value.

        A generation_config.json without `do_sample: true` asks for greedy decoding, as in transformers.
        """
        sampled = bool(generation_config.get("do_sample", False))
        defaults = {
            "temperature": generation_config.get("temperature") if sampled else 0.0,
            "top_k": generation_config.get("top_k"),
            "top_p": generation_config.get("top_p"),
            "min_p": generation_config.get("min_p"),
            "repetition_penalty": generation_config.get("repetition_penalty"),
        }
        filled = {name: _first(getattr(self, name), defaults[name], neutral) for name, neutral in _NEUTRAL.items()}
        return replace(self, **filled)

    def check(self, vocab_size: int) -> None:
        """Refuse ids outside the vocabulary and more alternatives than it has.

        Raises:
            RequestError: an id of `logit_bias` or `stop_token_ids`, or a logprobs count, is too large.
        """
        for name in ("logit_bias", "stop_token_ids"):
            wrong = [i for i in getattr(self, name) if i >= vocab_size]
            if wrong:
                raise RequestError(
                    f"{name}: id {wrong[0]} is outside the vocabulary, whose ids are 0 to {vocab_size - 1}."
                )
        for name in ("logprobs", "prompt_logprobs"):
            count = getattr(self, name)
            if count is not None and count > vocab_size:
                raise RequestError(f"{name} {count} is more than the vocabulary of {vocab_size}.")


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """How the engine uses the machine.

    Args:
        max_concurrency: Slots: how many requests decode together.
        context: Most tokens of one request, prompt and answer; None is the model's context length.
        prefill_chunk: Prompt tokens computed between two decode steps.
        kv_memory: Bytes for keys, values and states; None takes a share of the free memory.
        kv_dtype: How keys and values are stored; "auto" is what the bundle's graphs declare.
        max_queue: Requests that may wait before a new one is refused.
        max_queue_tokens: Prompt tokens that may wait; None is no limit.
        admission: "no_evict" admits when prompt and max_tokens fit; "optimistic" admits earlier and may recompute.
        reuse_generated: Let a later prompt reuse keys and values of generated tokens too. They can differ from computed
            ones in the last bit, so that an answer may then depend on what was answered before. On CPU with keys and
            values in int8 or int4 there is no such difference, and they are always reused.
        prefix_cache: Bytes of host memory for shared prefixes; 0 is off.
        threads: Threads inside one step; None is the number of physical cores.
        self_test: Check at the start that answers do not depend on their company, bit for bit; see LLM.deterministic.
        speculation: Most tokens drafted by prompt lookup per step; 0 is off.
        draft: Bundle of a smaller model with the same tokenizer. It drafts tokens for an answer that runs alone, while
            that pays; `speculation` is then the longest draft (0: five tokens). Answers stay the same, to the bit where
            keys and values are in codes.
        prepare: After a start without prepared weights, have another process pack them for the next one (CPU only).

    Raises:
        OptionError: a value is out of range.
    """

    max_concurrency: int = 16
    context: int | None = None
    prefill_chunk: int = 512
    kv_memory: int | None = None
    kv_dtype: Literal["auto", "float32", "float16", "int8", "int4"] = "auto"
    max_queue: int = 1024
    max_queue_tokens: int | None = None
    admission: Literal["no_evict", "optimistic"] = "no_evict"
    reuse_generated: bool = False
    prefix_cache: int = 0
    threads: int | None = None
    self_test: bool = False
    speculation: int = 0
    draft: str | Path | None = None
    prepare: bool = True

    def __post_init__(self) -> None:
        try:
            for name, value in self._checked().items():
                object.__setattr__(self, name, value)
        except ValueError as error:
            raise OptionError(f"{error}.") from None

    def _checked(self) -> dict[str, Any]:
        return {
            "max_concurrency": integer("max_concurrency", self.max_concurrency, 1, 4096),
            "context": _optional(integer, "context", self.context, 1),
            "prefill_chunk": integer("prefill_chunk", self.prefill_chunk, 1),
            "kv_memory": _optional(integer, "kv_memory", self.kv_memory, 1),
            "kv_dtype": one_of("kv_dtype", self.kv_dtype, ("auto", "float32", "float16", "int8", "int4")),
            "max_queue": integer("max_queue", self.max_queue, 1),
            "max_queue_tokens": _optional(integer, "max_queue_tokens", self.max_queue_tokens, 1),
            "admission": one_of("admission", self.admission, ("no_evict", "optimistic")),
            "reuse_generated": bool(self.reuse_generated),
            "prefix_cache": integer("prefix_cache", self.prefix_cache, 0),
            "threads": _optional(integer, "threads", self.threads, 1),
            "self_test": bool(self.self_test),
            "speculation": integer("speculation", self.speculation, 0, 64),
            "draft": None if self.draft is None else Path(self.draft),
            "prepare": bool(self.prepare),
        }


_NEUTRAL: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}


def integer(name: str, value: Any, low: int, high: int | None = None) -> int:
    """`value` as a plain int within [low, high]; booleans and fractions are refused with ValueError."""
    accepted = f"an integer of at least {low}" if high is None else f"an integer from {low} to {high}"
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < low or (high is not None and number > high):
        raise ValueError(f"{name} must be {accepted}, got {value!r}")
    return number


def real(name: str, value: Any, low: float, high: float, *, above: bool = False) -> float:
    """`value` as a finite float within [low, high], or (low, high] with `above`; else ValueError."""
    accepted = f"a number {'above' if above else 'from'} {low:g} {'up ' if above else ''}to {high:g}"
    try:
        number = math.nan if isinstance(value, bool | str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not (low <= number <= high) or (above and number == low):
        raise ValueError(f"{name} must be {accepted}, got {value!r}")
    return number


def one_of(name: str, value: Any, accepted: tuple[str, ...]) -> str:
    """`value` if it is one of the accepted words; else ValueError."""
    if not isinstance(value, str) or value not in accepted:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, accepted))}, got {value!r}")
    return value


def _first(*values: Any) -> Any:
    return next(value for value in values if value is not None)


def _optional(check: Any, name: str, value: Any, *limits: Any) -> Any:
    return None if value is None else check(name, value, *limits)


def _items(name: str, values: Any) -> tuple[Any, ...]:
    if not isinstance(values, Iterable) or isinstance(values, str | bytes | Mapping):
        raise ValueError(f"{name} must be a list, got {values!r}")
    return tuple(values)


def _structured(name: str, structured: Any, forced_length: bool) -> StructuredOutput:
    if schema_method(structured):
        structured = StructuredOutput(json_schema=structured)
    if not isinstance(structured, StructuredOutput):
        raise ValueError(f"{name} must be a StructuredOutput or a pydantic model, got {structured!r:.60}")
    if forced_length:
        raise ValueError("structured output ends where it is complete: it takes neither min_tokens nor ignore_eos")
    return structured


def _stop_strings(stop: Any) -> tuple[str, ...]:
    texts = (stop,) if isinstance(stop, str) else _items("stop", () if stop is None else stop)
    for text in texts:
        if not isinstance(text, str) or not text:
            raise ValueError(f"stop must be a string or a list of strings, none of them empty, got {text!r}")
    return tuple(texts)


def _logit_bias(bias: Any) -> dict[int, float]:
    if not isinstance(bias, Mapping):
        raise ValueError(f"logit_bias must map token ids to numbers, got {bias!r}")
    return {integer("logit_bias: id", i, 0): real(f"logit_bias[{i}]", value, -100, 100) for i, value in bias.items()}
