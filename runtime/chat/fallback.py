"""Tools for models whose template has none: a description in the prompt, and calls as Hermes writes them.

A model that was not trained for it may answer in any way, so this is off unless the operator asks for it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from .formats.format import ChatFormat
from .formats.known import HERMES

_INTRODUCTION = (
    "You may call functions. They are given here, one a line, as JSON:\n<tools>\n{tools}\n</tools>\n"
    "To call one, write nothing but this, with its name and arguments:\n"
    '<tool_call>\n{{"name": "…", "arguments": {{…}}}}\n</tool_call>\n'
    "The result comes back in <tool_response></tool_response>. Answer in words where no function is needed."
)


def fallback_format(chat: ChatFormat) -> ChatFormat:
    """The format of a template without tools, with the calls that the prompt describes."""
    return chat if chat.calls else replace(chat, calls=HERMES, source="fallback", takes_tools=False, problem="")


def messages_with_tools(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The conversation with the tools in its system message, and calls and results as text.

    Args:
        messages: as `plain_messages` takes them.
        tools: in OpenAI's format; without any, only calls and results of before are rewritten.
    """
    written = [_as_text(message) for message in messages]
    if not tools:
        return written
    introduction = _INTRODUCTION.format(tools="\n".join(json.dumps(dict(t), ensure_ascii=False) for t in tools))
    if written and written[0].get("role") in ("system", "developer"):
        first = written[0]
        return [{**first, "content": f"{_text(first.get('content'))}\n\n{introduction}"}, *written[1:]]
    return [{"role": "system", "content": introduction}, *written]


def _as_text(message: Mapping[str, Any]) -> dict[str, Any]:
    if message.get("role") == "tool":
        return {"role": "user", "content": f"<tool_response>\n{_text(message.get('content'))}\n</tool_response>"}
    calls = message.get("tool_calls")
    if not calls:
        return dict(message)
    kept = {key: value for key, value in message.items() if key != "tool_calls"}
    written = [_call(call) for call in calls]
    return {**kept, "content": "\n".join(filter(None, [_text(message.get("content")), *written]))}


def _call(call: Any) -> str:
    function = call.get("function") if isinstance(call, Mapping) else None
    function = function if isinstance(function, Mapping) else {}
    arguments = function.get("arguments", "{}")
    arguments = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return f'{HERMES.open}{{"name": {json.dumps(function.get("name"))}, "arguments": {arguments}}}{HERMES.close}'


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return content or ""
