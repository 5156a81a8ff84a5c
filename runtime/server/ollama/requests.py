"""Ollama's requests in the form that a chat has for them."""

import json
from collections.abc import Mapping
from typing import Any

from ..openai import protocol as openai
from ..openai.errors import ApiError
from ..openai.parse import require_known
from ..state import AppState
from .protocol import HARDWARE, NEUTRAL, SAMPLING, AnswerFields, ChatFields, GenerateFields

Message = dict[str, Any]
_KEYS = {"role", "content", "thinking", "tool_calls", "tool_name", "tool_call_id"}
_UNLIMITED = -1
_INTEGERS = frozenset({"top_k", "seed", "num_predict", "num_ctx"})
_NUMBERS = _INTEGERS | SAMPLING.keys()


def chat_fields(fields: ChatFields | GenerateFields, service: AppState) -> openai.ChatFields:
    """The same request as a chat.

    Raises:
        ApiError: 400: a message, option or format that cannot be had here; names where.
    """
    messages = _messages(fields) if isinstance(fields, ChatFields) else _prompt(fields)
    return openai.ChatFields(
        model=model_name(fields.model),
        messages=tuple(messages),
        tools=fields.tools if isinstance(fields, ChatFields) else None,
        response_format=_format(fields.format),
        stream=fields.stream is not False,
        **_thinking(fields.think),
        **sampling(fields, service),
    )


def model_name(name: str | None) -> str | None:
    """The name, if there is one, without the tag that Ollama's clients add."""
    return None if name is None else name.removesuffix(":latest")


def sampling(fields: AnswerFields, service: AppState) -> dict[str, Any]:
    """`options` as fields of a chat."""
    found: dict[str, Any] = {}
    longest = service.find(model_name(fields.model)).longest
    for name, value in (fields.options or {}).items():
        where = f"options.{name:.40}"
        if value is None or name in HARDWARE or (name == "top_k" and value == -1):  # -1: all tokens
            continue
        if name in _NUMBERS:
            kinds = (int,) if name in _INTEGERS else (int, float)
            words = "an integer" if name in _INTEGERS else "a number"
            _require(
                isinstance(value, kinds) and not isinstance(value, bool), where, f"must be {words}, got {value!r:.60}"
            )
        if name in SAMPLING:
            found[SAMPLING[name]] = value
        elif name == "stop":
            texts = value if isinstance(value, list) else [value]
            _require(all(isinstance(text, str) for text in texts), where, f"must be texts, got {value!r:.60}")
            found["stop"] = tuple(texts)
        elif name == "num_predict":
            found["max_tokens"] = longest if value == _UNLIMITED else value
        elif name == "num_ctx":
            _require(isinstance(value, int) and value <= longest, where, f"this model has {longest} tokens of context")
        elif name in NEUTRAL:
            _require(value in NEUTRAL[name], where, f"is not supported; {NEUTRAL[name][0]} does nothing")
        else:
            known = sorted({*SAMPLING, *NEUTRAL, *HARDWARE, "stop", "num_predict", "num_ctx"})
            raise _wrong(where, f"unknown option; there are {', '.join(known)}")
    return found


def _messages(fields: ChatFields) -> list[Message]:
    found: list[Message] = []
    for place, message in enumerate(fields.messages):
        where = f"messages[{place}]"
        given = {key: value for key, value in message.items() if value not in (None, [])}
        unknown = sorted(given.keys() - _KEYS)
        if unknown:
            words = "this server reads text" if unknown[0] == "images" else f"unknown key; there are {sorted(_KEYS)}"
            raise _wrong(f"{where}.{unknown[0]:.40}", words)
        found.append(_message(given, found, where))
    return found


def _message(given: Mapping[str, Any], before: list[Message], where: str) -> Message:
    message: Message = {"role": given.get("role"), "content": given.get("content", "")}
    if "thinking" in given:
        message["reasoning_content"] = given["thinking"]
    if "tool_calls" in given:
        made = sum(len(one.get("tool_calls", ())) for one in before)
        message["tool_calls"] = [
            _call(call, f"{where}.tool_calls[{i}]", made + i) for i, call in enumerate(given["tool_calls"])
        ]
    if message["role"] == "tool":
        message["tool_call_id"] = given.get("tool_call_id") or _answered(before, given.get("tool_name"), where)
    return message


def _call(call: Any, where: str, number: int) -> Message:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise _wrong(where, "must have a function with a name")
    require_known(call, {"id", "type", "function"}, where)
    require_known(function, {"name", "arguments", "index"}, f"{where}.function")
    arguments = json.dumps(function.get("arguments") or {}, ensure_ascii=False)
    call_id = call.get("id") or f"call_{number}"
    return {"id": call_id, "type": "function", "function": {"name": function["name"], "arguments": arguments}}


def _answered(before: list[Message], name: str | None, where: str) -> str:
    """The id of the call that a result belongs to: Ollama names the tool, or nothing, and keeps the order."""
    calls = [call for message in before for call in message.get("tool_calls", ())]
    done = {message.get("tool_call_id") for message in before}
    for call in calls:
        if call["id"] not in done and name in (None, call["function"]["name"]):
            return str(call["id"])
    raise _wrong(where, "is the result of a tool, and no call before it waits for one")


def _prompt(fields: GenerateFields) -> list[Message]:
    start = [{"role": "system", "content": fields.system}] if fields.system else []
    return [*start, {"role": "user", "content": fields.prompt}]


def _format(wanted: str | dict[str, Any] | None) -> dict[str, Any] | None:
    if wanted in (None, ""):
        return None
    if wanted == "json":
        return {"type": "json_object"}
    if isinstance(wanted, dict):
        return {"type": "json_schema", "json_schema": {"name": "answer", "schema": wanted}}
    raise _wrong("format", f'must be "json" or a JSON schema, got {wanted!r:.60}')


def _thinking(think: bool | str | None) -> dict[str, Any]:
    if isinstance(think, str):
        return {"reasoning_effort": think}
    return {} if think is None else {"enable_thinking": think}


def _require(holds: bool, where: str, words: str) -> None:
    if not holds:
        raise _wrong(where, words)


def _wrong(where: str, words: str) -> ApiError:
    return ApiError(400, f"{where}: {words}.", param=where)
