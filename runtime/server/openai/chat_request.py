"""From the fields of a conversation to a request for the engine: the one path that all routes with messages take."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...chat.answer_plan import AnswerPlan
from ...chat.formats.format import ChatFormat
from ...chat.thinking import check_variables, thinking_variables
from ...client import Request
from ..request_log import RequestLog
from ..state import AppState, ServedModel
from .chat_choice import ChatChoice
from .chat_format import answer_form
from .errors import ApiError
from .parameters import limit_of, sampling_params
from .protocol import ChatFields

_OURS = {"messages", "tools", "add_generation_prompt"}  # variables of a template that a request has fields for


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
        served.require_room(fields.n or 1)
        form, planner = answer_form(fields), served.planner
        messages = [_message(message) for message in fields.messages]
        variables = _variables(fields, planner.chat)
        lazily = not (fields.ignore_eos or fields.min_tokens)  # a grammar ends where a call is complete
        plan = planner.plan(messages, form.tools, form.choice, form.structured, lazily=lazily, **variables)
        params = sampling_params(
            limit_of(fields, fields.max_completion_tokens),
            max_tokens=service.options.default_max_tokens,
            logprobs=_logprobs(fields),
            structured=plan.structured,
        )
        timeout = service.timeout(fields.timeout)
        request = served.model.request(plan.prompt, params, timeout=timeout, visible=plan.visible, special_tokens=False)
        return cls(served, plan, request)

    def choice(self) -> ChatChoice:
        """An answer, at its beginning."""
        ends = frozenset({*self.served.model.bundle.manifest.tokens.eos, *self.request.params.stop_token_ids})
        return ChatChoice(self.plan.reader(), ends)


def _message(message: dict[str, Any]) -> Mapping[str, Any]:
    """A message whose role "developer", which templates do not know, is "system"."""
    return message | {"role": "system"} if message.get("role") == "developer" else message


def _variables(fields: ChatFields, chat: ChatFormat) -> dict[str, Any]:
    variables = fields.chat_template_kwargs or {}
    taken = sorted(_OURS & variables.keys()) + [name for name in variables if not name.isidentifier()]
    if taken:
        raise ApiError(400, f"chat_template_kwargs: {taken[0]!r:.60} cannot be set here.", param="chat_template_kwargs")
    check_variables(chat, variables, "chat_template_kwargs")
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
