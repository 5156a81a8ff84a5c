"""The bodies of Ollama's API, field by field, by the rules that all routes share."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from ..openai.protocol import about

# A model stays loaded as long as the server runs.
IGNORED = frozenset({"keep_alive"})
REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "images": "this server reads text",
        "width": "this server answers with text",
        "height": "this server answers with text",
        "steps": "this server answers with text",
        "suffix": "models here continue a prompt, they do not fill in",
        "template": "set `raw` and write the whole prompt, or serve the bundle with another --chat-template",
        "context": "send the conversation to /api/chat; what it shares with an earlier one is not computed again",
        "logprobs": "use /v1/chat/completions",
        "top_logprobs": "use /v1/chat/completions",
    }
)
# Options about hardware: what the server was started with holds, and no answer depends on them.
HARDWARE = frozenset(
    {"num_batch", "num_gpu", "main_gpu", "use_mmap", "use_mlock", "num_thread", "numa", "low_vram"}
) | {
    "f16_kv",
    "logits_all",
    "mirostat_eta",  # of a sampler that is refused
    "mirostat_tau",
}
# Options of samplers that do not exist here, with the values by which they do nothing.
NEUTRAL: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "mirostat": (0,),
        "tfs_z": (1, 1.0),
        "typical_p": (1, 1.0),
        "vocab_only": (False,),
        "embedding_only": (False,),
        "penalize_newline": (True,),
        "num_keep": (-1, 0, 4, 5),
        "repeat_last_n": (-1,),
    }
)
# Ollama's name → the field of a chat.
SAMPLING: Mapping[str, str] = MappingProxyType(
    {
        "temperature": "temperature",
        "top_k": "top_k",
        "top_p": "top_p",
        "min_p": "min_p",
        "seed": "seed",
        "repeat_penalty": "repetition_penalty",
        "presence_penalty": "presence_penalty",
        "frequency_penalty": "frequency_penalty",
    }
)


@dataclass(frozen=True, kw_only=True)
class AnswerFields:
    """What a chat and a generation have in common."""

    model: str | None = field(
        default=None,
        metadata=about("Which model; may be left out where there is only one. `:latest` behind a name means nothing."),
    )
    format: str | dict[str, Any] | None = field(default=None, metadata=about('"json", or a JSON schema.'))
    options: dict[str, Any] | None = field(default=None, metadata=about("Sampling, by Ollama's names."))
    stream: bool | None = field(default=None, metadata=about("Send JSON objects, one a line. Default: true."))
    think: bool | str | None = field(default=None, metadata=about("Whether, or how much, to think."))


@dataclass(frozen=True, kw_only=True)
class ChatFields(AnswerFields):
    """POST /api/chat."""

    messages: tuple[dict[str, Any], ...] = field(metadata=about("The conversation."))
    tools: tuple[dict[str, Any], ...] | None = field(default=None, metadata=about("Functions the model may call."))


@dataclass(frozen=True, kw_only=True)
class GenerateFields(AnswerFields):
    """POST /api/generate."""

    prompt: str = field(metadata=about("The user's message, or with `raw` the whole prompt."))
    system: str | None = field(default=None, metadata=about("The system message."))
    raw: bool | None = field(default=None, metadata=about("Continue the prompt as it is."))


@dataclass(frozen=True, kw_only=True)
class ShowFields:
    """POST /api/show."""

    model: str | None = field(default=None, metadata=about("Which model; may be left out where there is only one."))
    verbose: bool | None = field(default=None, metadata=about("Changes nothing here."))
