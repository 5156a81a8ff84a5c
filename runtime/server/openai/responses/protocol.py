"""The body of POST /v1/responses, field by field; see fields.py for the rules that all routes share."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from ..protocol import MAX_ID, SamplingFields, about

LOGPROBS = "message.output_text.logprobs"
# About things that do not exist here; built-in tools, whose calls `max_tool_calls` would limit, are refused.
IGNORED = frozenset(
    {"user", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options"}
    | {"max_tool_calls"}
)
REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "conversation": "use `previous_response_id`",
        "prompt": "send the text itself as `instructions` and `input`",
        "context_management": "nothing is ever left out of a conversation: send less",
        "background_options": "responses are answered at once",
        "access_programs": "there is none here",
        "moderation": "this server does not moderate",
        "image": "this server answers with text",
        "max_tokens": "use `max_output_tokens`",
        "messages": "use `input`",
        "response_format": "use `text.format`",
        "n": "a response has one answer",
    }
)


@dataclass(frozen=True, kw_only=True)
class ResponseStreamOptions:
    """Options of a stream."""

    include_obfuscation: bool = False  # padding against eavesdroppers of sizes; not done


@dataclass(frozen=True, kw_only=True)
class TextFields:
    """What the text of the answer must be."""

    format: dict[str, Any] | None = None
    verbosity: str | None = None  # accepted and ignored, as for chats


@dataclass(frozen=True, kw_only=True)
class ReasoningFields:
    """How much to think. Thoughts are given as they are, so a summary of them has no effect."""

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None


@dataclass(frozen=True, kw_only=True)
class ResponseFields(SamplingFields):
    """POST /v1/responses."""

    input: str | tuple[dict[str, Any], ...] = field(
        metadata=about("A text, or items: messages, function calls, and their outputs.")
    )
    instructions: str | None = field(
        default=None, metadata=about("A system message before everything; not kept for the response after this one.")
    )
    previous_response_id: str | None = field(
        default=None, metadata=about("The response that this one continues, if it is still stored.")
    )
    store: bool | None = field(
        default=None, metadata=about("Keep it in memory, for `previous_response_id` and GET. Default: true.")
    )
    max_output_tokens: int | None = field(default=None, metadata=about("Most tokens of the answer.", 1, MAX_ID))
    text: TextFields | None = field(default=None, metadata=about("The format: text, json_object or json_schema."))
    tools: tuple[dict[str, Any], ...] | None = field(default=None, metadata=about("Functions that the model may call."))
    tool_choice: str | dict[str, Any] | None = field(
        default=None, metadata=about("none, auto, required, or one function.")
    )
    parallel_tool_calls: bool | None = field(
        default=None, metadata=about("Whether several calls may be made at once where calls are forced.")
    )
    reasoning: ReasoningFields | None = field(default=None, metadata=about("How much to think."))
    enable_thinking: bool | None = field(default=None, metadata=about("Whether to think at all. Not OpenAI's."))
    thinking_budget: int | None = field(
        default=None, metadata=about("Most tokens of thoughts, where the template takes it. Not OpenAI's.", 0, MAX_ID)
    )
    include: tuple[Literal["message.output_text.logprobs", "reasoning.encrypted_content"], ...] | None = field(
        default=None, metadata=about("What to report besides: log-probabilities; there are no encrypted thoughts.")
    )
    top_logprobs: int | None = field(default=None, metadata=about("How many alternatives to report with each.", 0, 20))
    metadata: dict[str, str] | None = field(
        default=None, metadata=about("Kept with the response: up to 16 names of 64 characters, values of 512.")
    )
    truncation: Literal["disabled"] | None = field(
        default=None, metadata=about("Only disabled: nothing is ever left out of a prompt.")
    )
    background: bool | None = field(default=None, metadata=about("Only false: responses are answered at once."))
    stream_options: ResponseStreamOptions | None = field(default=None, metadata=about("Of the stream."))
    chat_template_kwargs: dict[str, Any] | None = field(
        default=None, metadata=about("Variables of the chat template. Not OpenAI's.")
    )
