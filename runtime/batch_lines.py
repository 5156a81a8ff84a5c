"""One line of a batch file: what it asks for, strictly read."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from .bundle import json_codec
from .chat.options import ChatOptions
from .errors import RequestError
from .options import SamplingParams
from .sampling.grammar import StructuredOutput

if TYPE_CHECKING:
    from .client import Model, Request

_PARAMETERS = frozenset(field.name for field in fields(SamplingParams))
_KEYS = frozenset({"id", "prompt", "messages"}) | ChatOptions.names() | _PARAMETERS


@dataclass(frozen=True)
class BatchDefaults:
    """Defaults for every line.

    Args:
        params: arguments of SamplingParams.
        raw: complete a `prompt` as it is, instead of wrapping it in the chat template as a user's message.
        system: the system message for such a prompt.
    """

    params: Mapping[str, Any]
    raw: bool = False
    system: str | None = None


@dataclass(frozen=True)
class BatchLine:
    """One line of the input: its number from 1 on, and its text, undecoded."""

    number: int
    content: bytes

    def digest(self, defaults: BatchDefaults) -> str:
        """A digest of the line and the defaults; an answer with another digest belongs to another request."""
        return hashlib.sha256(self.content.strip() + repr(defaults).encode()).hexdigest()[:16]

    def parse(self) -> dict[str, Any]:
        """The JSON object of the line.

        Raises:
            RequestError: it is not one, or has keys that mean nothing here.
        """
        try:
            entry = json_codec.loads(self.content.decode("utf-8"))
        except (UnicodeDecodeError, json_codec.StrictJsonError) as error:
            raise RequestError(f"not a line of JSON: {error}") from error
        if not isinstance(entry, dict):
            raise RequestError('not a JSON object, such as {"prompt": "Hi"}')
        unknown = sorted(set(entry) - _KEYS)
        if unknown:
            raise RequestError(f"unknown key {unknown[0]!r}; known are {', '.join(sorted(_KEYS))}")
        return entry


def batch_request(entry: Mapping[str, Any], defaults: BatchDefaults, model: "Model") -> "Request":
    """The request of a parsed line.

    Raises:
        RequestError, ChatTemplateError: it cannot be run.
    """
    params = {**defaults.params, **{name: value for name, value in entry.items() if name in _PARAMETERS}}
    if isinstance(params.get("structured"), Mapping):
        params["structured"] = _structured(params["structured"])
    if isinstance(params.get("logit_bias"), Mapping):
        params["logit_bias"] = {_token_id(name): value for name, value in params["logit_bias"].items()}
    if ("prompt" in entry) == ("messages" in entry):
        raise RequestError("a line has either a prompt or messages")
    prompt = entry.get("prompt")
    if "messages" not in entry and (defaults.raw or not isinstance(prompt, str)):
        if not isinstance(prompt, str | list):
            raise RequestError(f"prompt must be a text or a list of token ids, got {prompt!r:.60}")
        return model.request(prompt, SamplingParams(**params))
    system = [] if defaults.system is None else [{"role": "system", "content": defaults.system}]
    messages = entry.get("messages", [*system, {"role": "user", "content": prompt}])
    extra = {name: entry[name] for name in ChatOptions.names() & entry.keys()}
    return model.chat_request(messages, SamplingParams(**params), **extra)


def _structured(wanted: Mapping[str, Any]) -> StructuredOutput:
    try:
        return StructuredOutput(**wanted)
    except TypeError as error:
        raise RequestError(f"structured: {error}") from error


def _token_id(name: Any) -> Any:
    return int(name) if isinstance(name, str) and name.isdecimal() and len(name) < 10 else name
