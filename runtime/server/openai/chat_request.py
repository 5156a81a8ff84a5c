"""From the fields of a conversation to a request for the engine, and to its answers: the path of all such routes."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ...chat.answer_plan import AnswerPlan
from ...chat.formats.format import ChatFormat, ToolCall
from ...chat.formats.reader import AnswerReader
from ...chat.thinking import check_variables, thinking_variables
from ...client import Request
from ...engine.generation import OutputDelta
from ...errors import RequestError
from ...sampling.logprobs import TokenLogprob
from ..request_log import RequestLog
from ..state import AppState, ServedModel
from .chat_format import answer_form
from .errors import ApiError
from .parameters import limit_of, sampling_params, visible_ids
from .parse import require_known
from .protocol import ChatFields
from .schema_field import located

_OURS = {"messages", "tools", "add_generation_prompt"}  # variables of a template that a request has fields for
_KEYS = {"role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content", "reasoning", "thinking"}
# What clients send beside these and nobody needs: a hint for caches; answers of OpenAI's client, which repeats them
# parsed; LiteLLM's own, which repeats what stands in the others; the place of a call in a stream.
_HINTS = {"refusal", "parsed", "provider_specific_fields"}
_KINDS = ("text", "refusal", "function", None)
_PART_KEYS = {"type", "text", "refusal", "cache_control"}
_CALL_KEYS = {"id", "type", "function", "index"}
_FUNCTION_KEYS = {"name", "arguments", "parsed_arguments"}
_TOOL_KEYS = ({"type", "function", "cache_control"}, {"name", "description", "parameters", "strict"})


@dataclass(frozen=True)
class ChoicePart:
    """What a piece adds to a choice; `first_call` is how many calls came before."""

    content: str
    reasoning: str
    calls: tuple[ToolCall, ...]
    first_call: int
    logprobs: tuple[TokenLogprob, ...]
    finish_reason: str | None


@dataclass
class ChatChoice:
    """A choice, piece by piece.

    Attributes:
        reader: separates its text from thoughts and tool calls.
        ends: ids that end an answer; they are no part of its text.
    """

    reader: AnswerReader
    ends: frozenset[int]
    begun: bool = False
    content: str = ""
    reasoning: str = ""
    reasoning_tokens: int = 0
    calls: list[ToolCall] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None

    def push(self, delta: OutputDelta) -> ChoicePart:
        """Take what a step added."""
        self.begun = True
        content, reasoning, calls = self._read(delta)
        entries = delta.logprobs
        if delta.finish_reason == "stop" and delta.token_ids and delta.token_ids[-1] in self.ends:
            entries = entries[:-1]  # the end token is not part of the text
        part = ChoicePart(content, reasoning, calls, len(self.calls), entries, delta.finish_reason)
        self.content += content
        self.reasoning += reasoning
        self.calls += calls
        self.logprobs += entries
        if self.calls and delta.finish_reason == "stop":
            part = replace(part, finish_reason="tool_calls")
        self.finish_reason = part.finish_reason
        return part

    def _read(self, delta: OutputDelta) -> tuple[str, str, tuple[ToolCall, ...]]:
        thinking = self.reader.thinking
        part = self.reader.push(delta.text)
        if thinking or self.reader.thinking:
            self.reasoning_tokens += len(delta.token_ids)
        if delta.finish_reason is None:
            return part.content, part.reasoning, part.calls
        rest = self.reader.finish(cut=delta.finish_reason != "stop")
        return part.content + rest.content, part.reasoning + rest.reasoning, part.calls + rest.calls


@dataclass(frozen=True)
class ChatRequest:
    """A conversation, rendered, tokenized, and checked."""

    served: ServedModel
    plan: AnswerPlan
    request: Request

    @classmethod
    def of(cls, service: AppState, fields: ChatFields, record: RequestLog) -> "ChatRequest":
        """Render, tokenize and compile; takes long, so it runs in a thread.

        Raises:
            ApiError, RequestError: the request cannot be run as it is.
        """
        served = service.find(fields.model)
        record.model, record.stream = served.name, bool(fields.stream)
        try:
            return cls._checked(service, served, fields)
        except RequestError as error:
            raise located(error, fields, record.path, served.model.compile) from error

    @classmethod
    def _checked(cls, service: AppState, served: ServedModel, fields: ChatFields) -> "ChatRequest":
        served.require_room(fields.n or 1)
        form, planner = answer_form(fields), served.planner
        messages = template_messages(fields.messages, planner.template.source)
        variables = _variables(fields, planner.chat)
        lazily = not (fields.ignore_eos or fields.min_tokens)  # a grammar ends where a call is complete
        plan = planner.plan(messages, form.tools, form.choice, form.structured, lazily=lazily, **variables)
        require_tools_shown(form.tools, plan.prompt)
        params = sampling_params(
            limit_of(fields, fields.max_completion_tokens),
            max_tokens=service.options.default_max_tokens,
            logprobs=_logprobs(fields),
            structured=plan.structured,
        )
        timeout = service.timeout(fields.timeout)
        visible = plan.visible | visible_ids(served, fields)
        request = served.model.request(plan.prompt, params, timeout=timeout, visible=visible, special_tokens=False)
        return cls(served, plan, request)

    def choice(self) -> ChatChoice:
        """An answer, at its beginning."""
        ends = frozenset({*self.served.model.bundle.manifest.tokens.eos, *self.request.params.stop_token_ids})
        return ChatChoice(self.plan.reader(), ends)


def template_messages(messages: Iterable[dict[str, Any]], template: str) -> list[Mapping[str, Any]]:
    """Messages as templates know them.

    Args:
        messages: of a body.
        template: source of the chat template; a key that it names is known.

    Raises:
        ApiError: 400: a key that no template knows and this one does not name: nobody would read it.
    """
    made = []
    for place, message in enumerate(messages):
        for described, known, where in _described(message, f"messages[{place}]"):
            if not known.issuperset(described):
                require_known(described, known | {key for key in described if _names(template, key)}, where)
        made.append(_message(message))
    return made


def require_tools_shown(tools: Iterable[Mapping[str, Any]], prompt: str) -> None:
    """Refuse a key of a tool that is not OpenAI's, and that the prompt does not show to the model.

    Raises:
        ApiError: 400, which names the key.
    """
    for place, tool in enumerate(tools):
        for described, known, where in zip((tool, tool["function"]), _TOOL_KEYS, ("", ".function"), strict=True):
            if not known.issuperset(described):
                shown = {key for key in described if f'"{key}"' in prompt or f"'{key}'" in prompt}
                require_known(described, known | shown, f"tools[{place}]{where}")


def _described(message: Mapping[str, Any], where: str) -> Iterator[tuple[Mapping[str, Any], set[str], str]]:
    """The objects in a message, with the keys that they may have."""
    yield message, _KEYS | _HINTS, where
    for name, known in (("content", _PART_KEYS), ("tool_calls", _CALL_KEYS)):
        parts = message.get(name)
        for place, part in enumerate(parts if isinstance(parts, list) else ()):
            if isinstance(part, dict) and part.get("type") in _KINDS:  # others are refused for what they are
                yield part, known, f"{where}.{name}[{place}]"
                if isinstance(part.get("function"), dict):
                    yield part["function"], _FUNCTION_KEYS, f"{where}.{name}[{place}].function"


def _names(template: str, key: str) -> bool:
    """Whether a template reads this key somewhere: as an attribute, an item, or by a filter."""
    quoted = rf"""['"]{re.escape(key)}['"]"""
    reads = rf"\.{re.escape(key)}\b|[\[(=]\s*{quoted}|{quoted}\s+(?:not\s+)?in\b"
    return re.search(reads, template) is not None


def _message(message: dict[str, Any]) -> Mapping[str, Any]:
    """The role "developer" is "system", and a refusal is a text."""
    if message.get("role") == "developer":
        message = message | {"role": "system"}
    if isinstance(message.get("content"), list):
        message = message | {"content": [_part(part) for part in message["content"]]}
    if message.get("refusal") and not message.get("content"):
        message = message | {"content": message["refusal"]}
    return {name: value for name, value in message.items() if name not in _HINTS and value not in ([], {})}


def _part(part: Any) -> Any:
    if isinstance(part, dict) and part.get("type") == "refusal" and isinstance(part.get("refusal"), str):
        return {"type": "text", "text": part["refusal"]}
    return part


def _variables(fields: ChatFields, chat: ChatFormat) -> dict[str, Any]:
    variables = fields.chat_template_kwargs or {}
    taken = sorted(_OURS & variables.keys()) + [name for name in variables if not name.isidentifier()]
    if taken:
        raise ApiError(400, f"chat_template_kwargs: {taken[0]!r:.60} cannot be set here.", param="chat_template_kwargs")
    check_variables(chat, variables, "chat_template_kwargs")
    if fields.add_generation_prompt is not None:
        variables = variables | {"add_generation_prompt": fields.add_generation_prompt}
    if fields.continue_final_message:
        if fields.add_generation_prompt is not False:
            raise ApiError(
                400, "continue_final_message needs add_generation_prompt to be false.", param="continue_final_message"
            )
        variables = variables | {"continue_final_message": True}
    thinking = thinking_variables(
        chat, effort=fields.reasoning_effort, enable=fields.enable_thinking, budget=fields.thinking_budget
    )
    return thinking | variables


def _logprobs(fields: ChatFields) -> int | None:
    if fields.top_logprobs is not None and not fields.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs to be true.", param="top_logprobs")
    count = fields.top_logprobs or 0
    if not 0 <= count <= 20:
        raise ApiError(400, f"top_logprobs must be from 0 to 20, got {count}.", param="top_logprobs")
    return count if fields.logprobs else None
