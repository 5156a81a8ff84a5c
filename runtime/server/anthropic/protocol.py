"""The bodies of Anthropic's Messages API, field by field, by the rules that all routes share."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from ..openai.protocol import MAX_ID, about

# Bookkeeping and caching hints; a `cache_control` inside a block is one too: prefixes are reused without being asked.
IGNORED = frozenset({"metadata", "service_tier", "inference_geo", "cache_control"})
REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "container": "this server runs no code",
        "mcp_servers": "this server calls no other server; give `tools`",
        "context_management": "the whole conversation is the prompt",
    }
)


@dataclass(frozen=True, kw_only=True)
class CountFields:
    """POST /v1/messages/count_tokens; the fields that a message has as well."""

    model: str | None = field(default=None, metadata=about("Which model; may be left out where there is only one."))
    messages: tuple[dict[str, Any], ...] = field(metadata=about("The conversation: user and assistant in turns."))
    system: str | tuple[dict[str, Any], ...] | None = field(default=None, metadata=about("The system prompt."))
    tools: tuple[dict[str, Any], ...] | None = field(default=None, metadata=about("Tools with `input_schema`."))
    tool_choice: dict[str, Any] | None = field(default=None, metadata=about("auto, any, none, or one tool."))
    thinking: dict[str, Any] | None = field(default=None, metadata=about("enabled, disabled or adaptive."))
    output_config: dict[str, Any] | None = field(default=None, metadata=about("`effort` and `format`."))


@dataclass(frozen=True, kw_only=True)
class MessageFields(CountFields):
    """POST /v1/messages."""

    max_tokens: int = field(metadata=about("Most tokens of the answer.", 1, MAX_ID))
    temperature: float | None = field(default=None, metadata=about("0 is greedy.", 0, 100))
    top_p: float | None = field(default=None, metadata=about("Keep the likeliest tokens that reach this.", 0, 1))
    top_k: int | None = field(default=None, metadata=about("Keep the k likeliest tokens; 0 or -1: all.", -1, MAX_ID))
    stop_sequences: tuple[str, ...] | None = field(default=None, metadata=about("Text that ends the answer."))
    stream: bool | None = field(default=None, metadata=about("Send the answer as typed server-sent events."))
