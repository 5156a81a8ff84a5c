"""The bodies of requests, field by field. The ranges are for the published document; SamplingParams enforces them."""

from dataclasses import dataclass, field
from typing import Any, Literal

MAX_ID = 2**31 - 1


def about(doc: str, minimum: float | None = None, maximum: float | None = None) -> dict[str, Any]:
    """What the published document says of a field: what it is, and its range."""
    limits = {"minimum": minimum, "maximum": maximum}
    return {"doc": doc, **{name: value for name, value in limits.items() if value is not None}}


@dataclass(frozen=True, kw_only=True)
class StreamOptions:
    """Options of a stream."""

    include_usage: bool = False
    continuous_usage_stats: bool = False  # the usage so far in every chunk, as vLLM does
    include_obfuscation: bool = False  # padding against eavesdroppers of sizes; not done


@dataclass(frozen=True, kw_only=True)
class StructuredOutputs:
    """What the answer must be, beyond OpenAI's `response_format`; exactly one is given. Named as vLLM names them."""

    json: dict[str, Any] | str | None = None
    json_object: bool | None = None
    regex: str | None = None
    grammar: str | None = None
    choice: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class SamplingFields:
    """What every request for tokens may say."""

    model: str | None = field(default=None, metadata=about("Which model; may be left out where there is only one."))
    temperature: float | None = field(default=None, metadata=about("0 is greedy.", 0, 100))
    top_p: float | None = field(
        default=None, metadata=about("Keep the likeliest tokens that together reach this probability.", 0, 1)
    )
    top_k: int | None = field(
        default=None, metadata=about("Keep the k likeliest tokens; 0 and -1 keep all. Not OpenAI's.", -1, MAX_ID)
    )
    min_p: float | None = field(
        default=None, metadata=about("Keep tokens at least this share as likely as the likeliest. Not OpenAI's.", 0, 1)
    )
    seed: int | None = field(default=None, metadata=about("Repeats an answer.", -(2**63), 2**63 - 1))
    stop: str | tuple[str, ...] | None = field(default=None, metadata=about("Text that ends the answer."))
    stop_token_ids: tuple[int, ...] | None = field(
        default=None, metadata=about("Ids that end the answer. Not OpenAI's.")
    )
    min_tokens: int | None = field(
        default=None, metadata=about("No end before this many tokens. Not OpenAI's.", 0, MAX_ID)
    )
    ignore_eos: bool | None = field(default=None, metadata=about("Go on after the model's end token. Not OpenAI's."))
    repetition_penalty: float | None = field(
        default=None, metadata=about("Above 1: avoid tokens seen so far. Not OpenAI's.", 0.01, 100)
    )
    presence_penalty: float | None = field(
        default=None, metadata=about("Subtracted for tokens of the answer so far.", -100, 100)
    )
    frequency_penalty: float | None = field(
        default=None, metadata=about("Subtracted for each time they occurred.", -100, 100)
    )
    logit_bias: dict[str, float] | None = field(
        default=None, metadata=about("Added to the logits of these ids, from -100 to 100.")
    )
    stream: bool | None = field(default=None, metadata=about("Send the answer piece by piece, as server-sent events."))
    timeout: float | None = field(
        default=None, metadata=about("Seconds after which the request ends with an error. Not OpenAI's.", 0, 86400)
    )


@dataclass(frozen=True, kw_only=True)
class GenerationFields(SamplingFields):
    """What chat and completion have in common."""

    n: int | None = field(default=None, metadata=about("How many answers.", 1, 128))
    max_tokens: int | None = field(default=None, metadata=about("Most tokens of the answer.", 0, MAX_ID))
    skip_special_tokens: bool | None = field(
        default=None, metadata=about("Leave special tokens out of the text. Default: true. Not OpenAI's.")
    )
    keep_alive: str | int | float | None = field(
        default=None, metadata=about("Ignored but for 0, which is refused: models stay loaded. Ollama's.")
    )
    stream_options: StreamOptions | None = field(default=None, metadata=about("Of the stream."))
    structured_outputs: StructuredOutputs | None = field(
        default=None, metadata=about("What the answer must be. Not OpenAI's.")
    )


@dataclass(frozen=True, kw_only=True)
class ChatFields(GenerationFields):
    """POST /v1/chat/completions."""

    messages: tuple[dict[str, Any], ...] = field(metadata=about("The conversation."))
    max_completion_tokens: int | None = field(default=None, metadata=about("Most tokens of the answer.", 0, MAX_ID))
    logprobs: bool | None = field(default=None, metadata=about("Report the log-probability of each token."))
    top_logprobs: int | None = field(default=None, metadata=about("How many alternatives to report with each.", 0, 20))
    response_format: dict[str, Any] | None = field(default=None, metadata=about("text, json_object or json_schema."))
    tools: tuple[dict[str, Any], ...] | None = field(default=None, metadata=about("Functions that the model may call."))
    tool_choice: str | dict[str, Any] | None = field(
        default=None, metadata=about("none, auto, required, or one function.")
    )
    parallel_tool_calls: bool | None = field(
        default=None, metadata=about("Whether several calls may be made at once where calls are forced.")
    )
    reasoning_effort: str | None = field(
        default=None, metadata=about("How much to think: none, minimal, low, medium, high or xhigh.")
    )
    enable_thinking: bool | None = field(default=None, metadata=about("Whether to think at all. Not OpenAI's."))
    thinking_budget: int | None = field(
        default=None, metadata=about("Most tokens of thoughts, where the template takes it. Not OpenAI's.", 0, MAX_ID)
    )
    add_generation_prompt: bool | None = field(
        default=None, metadata=about("Begin a new answer. Default: true. Not OpenAI's.")
    )
    continue_final_message: bool | None = field(
        default=None, metadata=about("Go on with the last message; needs add_generation_prompt false. Not OpenAI's.")
    )
    echo: Literal[False] | None = field(default=None, metadata=about("Only false. Not OpenAI's."))
    add_special_tokens: Literal[False] | None = field(
        default=None, metadata=about("Only false: the template writes them. Not OpenAI's.")
    )
    modalities: tuple[Literal["text"], ...] | None = field(default=None, metadata=about("Only text."))
    chat_template_kwargs: dict[str, Any] | None = field(
        default=None, metadata=about("Variables of the chat template. Not OpenAI's.")
    )


@dataclass(frozen=True, kw_only=True)
class CompletionFields(GenerationFields):
    """POST /v1/completions."""

    prompt: str | tuple[str, ...] | tuple[int, ...] | tuple[tuple[int, ...], ...] = field(
        metadata=about("A text, several texts, token ids, or several lists of them.")
    )
    logprobs: int | None = field(
        default=None, metadata=about("How many alternatives to report with each token.", 0, 20)
    )
    echo: bool | None = field(default=None, metadata=about("Begin the answer with the prompt."))
    add_special_tokens: bool | None = field(
        default=None, metadata=about("Begin and end the prompt as the model expects. Default: true. Not OpenAI's.")
    )


@dataclass(frozen=True, kw_only=True)
class TokenizeFields:
    """POST /tokenize."""

    model: str | None = field(default=None, metadata=about("Which model; may be left out where there is only one."))
    prompt: str | None = field(default=None, metadata=about("A text; or give messages."))
    messages: tuple[dict[str, Any], ...] | None = field(
        default=None, metadata=about("A conversation; or give a prompt.")
    )
    tools: tuple[dict[str, Any], ...] | None = field(default=None, metadata=about("Functions, with messages."))
    add_special_tokens: bool | None = field(
        default=None, metadata=about("Begin and end a prompt as the model expects. Default: true.")
    )
    add_generation_prompt: bool | None = field(
        default=None, metadata=about("End messages where the answer begins. Default: true.")
    )
    return_token_strs: bool | None = field(default=None, metadata=about("Return the tokens as text too."))


@dataclass(frozen=True, kw_only=True)
class DetokenizeFields:
    """POST /detokenize."""

    model: str | None = field(default=None, metadata=about("Which model; may be left out where there is only one."))
    tokens: tuple[int, ...] = field(metadata=about("Token ids."))
