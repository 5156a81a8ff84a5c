"""Finished answers: put together from deltas, scored, and as plain data."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from .engine.generation import OutputDelta, RequestState, Timings
from .sampling.logprobs import TokenLogprob

if TYPE_CHECKING:
    from .chat.formats.format import ToolCall


@dataclass(frozen=True)
class Completion:
    """One answer to one prompt.

    Attributes:
        text: without stop strings and special tokens; of a chat, without thoughts and tool calls.
        token_ids: everything that was sampled, including the id that ended it.
        finish_reason: "stop", "length", "cancelled", "timeout" or "error"; of a chat also "tool_calls".
        prompt_tokens: tokens of the prompt.
        cached_tokens: how many of those were found in the cache.
        timings: when it was submitted, admitted, and so on.
        seed: with it, the same request gives the same answer.
        logprobs: one entry per token of `token_ids`, where asked for.
        prompt_logprobs: one entry per prompt token, None for the first, where asked for.
        error: what went wrong if finish_reason is "error".
        reasoning: the thoughts of a chat's answer.
        tool_calls: the calls that a chat's answer makes.
        alternatives: the other answers where `n` is more than 1.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    prompt_tokens: int
    cached_tokens: int
    timings: Timings
    seed: int
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    error: Exception | None = None
    reasoning: str = ""
    tool_calls: "tuple[ToolCall, ...]" = ()
    alternatives: tuple["Completion", ...] = ()

    @property
    def message(self) -> dict[str, Any]:
        """The answer as a message, to go on with: with its thoughts and calls."""
        return answer_message(self.text, self.reasoning, self.tool_calls)


def answer_message(text: str, reasoning: str, calls: "Sequence[ToolCall]") -> dict[str, Any]:
    """An answer as a message, to go on with."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [call_message(call.id, call.name, call.arguments) for call in calls]
    return message


def call_message(name: str, function: str, arguments: str) -> dict[str, Any]:
    """A call as messages carry it: its id, the function, the text of the JSON object of its arguments."""
    return {"id": name, "type": "function", "function": {"name": function, "arguments": arguments}}


def complete(answer: RequestState, deltas: Sequence[OutputDelta]) -> Completion:
    """The completion of an answer that has ended with the last of `deltas`."""
    reason = deltas[-1].finish_reason
    assert reason is not None
    wanted = answer.params.logprobs is not None
    return Completion(
        text="".join(delta.text for delta in deltas),
        token_ids=tuple(token for delta in deltas for token in delta.token_ids),
        finish_reason=reason,
        prompt_tokens=answer.sequence.prompt_length,
        cached_tokens=answer.sequence.num_cached,
        timings=answer.timings,
        seed=answer.sampler.seed,
        logprobs=tuple(entry for delta in deltas for entry in delta.logprobs) if wanted else None,
        prompt_logprobs=None if answer.prompt_logprobs is None else tuple(answer.prompt_logprobs),
        error=answer.error,
        reasoning="".join(delta.reasoning for delta in deltas),
        tool_calls=tuple(call for delta in deltas for call in delta.tool_calls),
    )


@dataclass(frozen=True)
class Score:
    """How likely a model finds a text.

    Attributes:
        token_ids: the text's tokens, those included that the tokenizer adds.
        logprobs: the log-probability of each token given those before it, in nats; None for the first.
        perplexity: exp of the mean of the negated log-probabilities; 1 where there is only one token.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    perplexity: float


def score_of(token_ids: Sequence[int], completion: Completion) -> Score:
    """The score of a prompt from the completion that has its `prompt_logprobs`."""
    assert completion.prompt_logprobs is not None
    logprobs = tuple(None if one is None else one.logprob for one in completion.prompt_logprobs)
    known = [value for value in logprobs if value is not None]
    return Score(tuple(token_ids), logprobs, math.exp(-sum(known) / len(known)) if known else 1.0)


def raise_error(completion: Completion) -> Completion:
    """The completion, if it has no error; else that is raised."""
    if completion.error is not None:
        raise completion.error
    return completion


def combine(answers: Sequence[RequestState], deltas: Sequence[OutputDelta]) -> Completion:
    """The completion of all answers to one request: the first, with the others as its alternatives."""
    first, *others = (complete(a, [delta for delta in deltas if delta.index == a.index]) for a in answers)
    return replace(first, alternatives=tuple(others))


def completion_json(answer: Completion) -> dict[str, Any]:
    """A completion as plain data, for --json and batch files; its times become seconds."""
    plain = asdict(answer)
    plain["error"] = None if answer.error is None else str(answer.error)
    plain["alternatives"] = [completion_json(other) for other in answer.alternatives]
    plain["timings"] = {"time_to_first_token": answer.timings.time_to_first_token, "total": answer.timings.total}
    return plain
