"""From a body to its fields: what is read, what is accepted and ignored, and what is refused by name.

A field that nobody knows is an error that lists those that are known: a misspelt one must not be a silent default.
`null` is the same as leaving a field out, as OpenAI's clients send it. Fields of other servers that have one value here
are neutral: that value is accepted.
"""

from collections.abc import Collection, Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any, TypeVar

from ...bundle import json_codec
from .errors import ApiError
from .protocol import SamplingFields

Fields = TypeVar("Fields")

# Sent by OpenAI's clients, about things that do not exist here: bookkeeping, tiers, caching hints.
IGNORED = frozenset(
    {"user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"}
    | {"prompt_cache_options", "verbosity", "prediction", "request_id", "cache_prompt", "cache_salt", "id_slot"}
)
REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "functions": "use `tools`",
        "function_call": "use `tool_choice`",
        "audio": "this server answers with text",
        "web_search_options": "this server does not search",
        "moderation": "this server does not moderate",
    }
)
# Name → the values that change nothing, and what to do instead of the others.
_NEUTRAL: Mapping[str, tuple[tuple[Any, ...], str]] = MappingProxyType(
    {
        "suffix": (("",), "models here continue a prompt, they do not fill in"),
        "use_beam_search": ((False,), "answers are sampled: use `n`, and choose by `logprobs`"),
        "speed": (("standard",), "there is one speed"),
        "length_penalty": ((1,), "answers are sampled, without beams"),
        "early_stopping": ((False,), "answers are sampled, without beams"),
        "prompt_logprobs": ((0,), "use /v1/completions with `echo` and `logprobs`"),
        "spaces_between_special_tokens": ((True,), "tokens are decoded as the tokenizer does"),
        "include_stop_str_in_output": ((False,), "a stop text is never part of the answer"),
        "detokenize": ((True,), "answers are text: use `logprobs` for tokens"),
        "truncate_prompt_tokens": ((), "nothing is ever left out of a prompt: send less"),
        "return_tokens_as_token_ids": ((False,), "tokens are shown as text and bytes"),
        "return_token_ids": ((False,), "use /tokenize"),
        "return_prompt_token_ids": ((False,), "use /tokenize"),
        "bad_words": (((), []), "use `logit_bias`"),
        "allowed_token_ids": ((), "use `structured_outputs`"),
        "logits_processors": (((), []), "use `logit_bias`"),
        "ignore_eos_token": ((False,), "use `ignore_eos`"),
        "typical_p": ((1,), "use `top_p` or `min_p`"),
        "tfs_z": ((1,), "use `top_p` or `min_p`"),
        "mirostat": ((0,), "use `top_p` or `min_p`"),
        "repeat_penalty": ((1,), "use `repetition_penalty`"),
        "dry_multiplier": ((0,), "use `repetition_penalty`"),
        "xtc_probability": ((0,), "use `top_p` or `min_p`"),
        "guided_decoding_backend": (("auto",), "there is one backend"),
        "guided_whitespace_pattern": ((), "JSON is written without a free choice of blanks"),
        "chat_template": ((), "the server's operator chooses it: --chat-template"),
        "documents": (((), []), "put them into a message"),
        "mm_processor_kwargs": (({},), "models here read text only"),
        "response_role": (("assistant",), "answers are the assistant's"),
        "priority": ((0,), "requests are answered in order"),
        "n_probs": ((0,), "use `logprobs`"),
        "truncation": (("disabled", "auto"), "nothing is ever left out of a prompt: send less"),
    }
)
_GUIDED = {"guided_json": "json", "guided_regex": "regex", "guided_choice": "choice", "guided_grammar": "grammar"}


def parse(
    kind: type[Fields],
    body: bytes,
    ignored: Collection[str] = IGNORED,
    refused: Mapping[str, str] = REFUSED,
) -> Fields:
    """The fields of a body.

    Args:
        kind: a dataclass.
        body: JSON.
        ignored: names that are accepted and left out.
        refused: names that are not supported, and what to do instead.

    Raises:
        ApiError: 400: not JSON, or not these fields; `param` names the field.
    """
    try:
        value = json_codec.loads(body.decode("utf-8"))
        if isinstance(value, dict):
            value = _without_ignored(value, ignored, refused)
            if issubclass(kind, SamplingFields):
                value = without_neutral(value, frozenset(each.name for each in fields(kind)))
        return json_codec.decode(kind, value)
    except UnicodeDecodeError as error:
        raise ApiError(400, f"The body is not UTF-8: {error}.") from error
    except json_codec.StrictJsonError as error:
        where, colon, _ = str(error).partition(":")
        raise ApiError(400, f"{error}.", param=where if colon and " " not in where else None) from error


def require_known(described: Any, known: Collection[str], where: str) -> None:
    """Refuse a key that nobody reads; null counts as left out. What is no object is for others to refuse.

    Raises:
        ApiError: 400, which names the key.
    """
    given = described.items() if isinstance(described, Mapping) else ()
    unknown = sorted(str(key) for key, value in given if key not in known and value is not None)
    if unknown:
        name = f"{where}.{unknown[0]:.60}"
        raise ApiError(400, f"{name}: unknown key; known are {', '.join(sorted(known))}.", param=name)


def _without_ignored(body: dict[str, Any], ignored: Collection[str], refused: Mapping[str, str]) -> dict[str, Any]:
    given = {name: value for name, value in body.items() if value is not None and name not in ignored}
    for name in given.keys() & refused.keys():
        raise ApiError(400, f"{name} is not supported: {refused[name]}.", code="unsupported_parameter", param=name)
    return given


def without_neutral(body: dict[str, Any], known: frozenset[str]) -> dict[str, Any]:
    """The body without neutral fields, and with `guided_…` as `structured_outputs`.

    Args:
        body: fields whose value is not null.
        known: those that the route reads itself.

    Raises:
        ApiError: 400: a value is not neutral.
    """
    rest = dict(body)
    for name, (values, advice) in _NEUTRAL.items():
        if name in rest and name not in known and not _among(rest.pop(name), values):
            raise ApiError(400, f"{name} is not supported here: {advice}.", code="unsupported_parameter", param=name)
    _check_best_of(rest)
    if rest.get("top_k") == -1:
        del rest["top_k"]  # all tokens, as vLLM writes it
    return _with_structured_outputs(rest) if "structured_outputs" in known else rest


def _among(value: Any, values: tuple[Any, ...]) -> bool:
    return any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in values)


def _check_best_of(body: dict[str, Any]) -> None:
    best, count = body.pop("best_of", None), body.get("n", 1)
    if best is not None and (isinstance(best, bool) or best != count):
        raise ApiError(
            400,
            "best_of is supported only where it equals `n`: ask for more answers with `n`, and choose by `logprobs`.",
            code="unsupported_parameter",
            param="best_of",
        )


def _with_structured_outputs(body: dict[str, Any]) -> dict[str, Any]:
    guided = [name for name in _GUIDED if name in body]
    if not guided:
        return body
    if len(guided) > 1 or "structured_outputs" in body:
        raise ApiError(400, f"{guided[0]}: give one form of the answer, not several.", param=guided[0])
    value = body.pop(guided[0])
    return body | {"structured_outputs": {_GUIDED[guided[0]]: value}}
