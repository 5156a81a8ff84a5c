"""From the fields of a request to SamplingParams."""

from dataclasses import replace
from typing import Any

from ...options import SamplingParams
from ...sampling.grammar import StructuredOutput
from ..state import ServedModel
from .errors import ApiError
from .protocol import GenerationFields, StructuredOutputs

_SAME = (
    *("n", "temperature", "top_p", "top_k", "min_p", "stop", "stop_token_ids", "min_tokens", "ignore_eos"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty"),
)
_SEEDS = 2**64


def sampling_params(
    fields: GenerationFields, *, max_tokens: int, logprobs: int | None, structured: StructuredOutput | None
) -> SamplingParams:
    """The parameters of a request.

    Args:
        fields: of its body.
        max_tokens: where the body names none.
        logprobs: alternatives per token, or None.
        structured: what the answer must be, or None.

    Raises:
        RequestError: a value is out of range.
        ApiError: a logit bias is not for an id.
    """
    given: dict[str, Any] = {name: getattr(fields, name) for name in _SAME if getattr(fields, name) is not None}
    if fields.seed is not None:
        given["seed"] = fields.seed % _SEEDS  # OpenAI's are signed
    if fields.logit_bias is not None:
        given["logit_bias"] = {_token_id(name): value for name, value in fields.logit_bias.items()}
    limit = max_tokens if fields.max_tokens is None else fields.max_tokens
    return SamplingParams(max_tokens=limit, logprobs=logprobs, structured=structured, **given)


def structured_output(wanted: StructuredOutputs | None) -> StructuredOutput | None:
    """`structured_outputs` of a request.

    Raises:
        RequestError: none or several are given, or one is malformed.
    """
    if wanted is None:
        return None
    return StructuredOutput(
        json_schema=wanted.json,
        json_object=bool(wanted.json_object),
        regex=wanted.regex,
        lark=wanted.grammar,
        choice=wanted.choice,
    )


def visible_ids(served: ServedModel, fields: GenerationFields) -> frozenset[int]:
    """Ids of special tokens that the text shows: all of them with `skip_special_tokens: false`.

    Raises:
        ApiError: `keep_alive` asks to unload the model.
    """
    if fields.keep_alive is not None and str(fields.keep_alive).strip() in ("0", "0.0", "0s"):
        raise ApiError(400, "keep_alive: models stay loaded while the server runs; leave it out.", param="keep_alive")
    return served.model.tokenizer.special if fields.skip_special_tokens is False else frozenset()


def limit_of(fields: GenerationFields, other: int | None) -> GenerationFields:
    """The fields with `max_tokens` from OpenAI's newer `max_completion_tokens` where that is given."""
    return fields if other is None else replace(fields, max_tokens=other)


def _token_id(name: str) -> int:
    if not name.isdecimal() or len(name) > 10:
        raise ApiError(400, f"logit_bias: {name!r:.40} is not a token id.", param="logit_bias")
    return int(name)
