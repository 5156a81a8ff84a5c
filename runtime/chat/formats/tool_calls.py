"""Tool calls in a model's words: found, taken out and parsed, for the common families of chat templates.

hermes   Qwen, Hermes, SmolLM3 …   <tool_call>{"name": …, "arguments": {…}}</tool_call>, repeated
mistral  Mistral, Ministral …      [TOOL_CALLS][{"name": …, "arguments": {…}}, …]  or  [TOOL_CALLS]name[ARGS]{…}
granite  Granite, Phi-4-mini …     <|tool_call|>[{"name": …, "arguments": {…}}, …]
llama    Llama 3.x                 the whole answer is {"name": …, "parameters": {…}}, several joined by ";"

Nothing is lost: what turns out to be no call is given back as text.
"""

import json
import re
import secrets
import string
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Literal

from ...text.tokenizer import overlap

Family = Literal["hermes", "mistral", "granite", "llama"]

MARKS: dict[Family, str] = {
    "hermes": "<tool_call>",
    "mistral": "[TOOL_CALLS]",
    "granite": "<|tool_call|>",
    "llama": "<|python_tag|>",
}
_ID_LETTERS = string.ascii_letters + string.digits
_ID_LENGTH = 9  # Mistral's templates accept no other
_CLOSING = re.compile(r"\s*(</tool_call>|<\|/tool_call\|>)?\s*")
_NAMED = re.compile(r"\s*([\w.-]+)\s*(?:\[CALL_ID\]\s*\w+\s*)?(?:\[ARGS\])?\s*(?=\{)")
_BLANK = re.compile(r"[\s;]*")


@dataclass(frozen=True)
class ToolCall:
    """One call that the model asks for; `arguments` is the text of a JSON object, as in OpenAI's format."""

    id: str
    name: str
    arguments: str


def family_of(template: str) -> Family | None:
    """The family of a chat template's source, or None if it has no tool calls that we know."""
    for family in ("hermes", "mistral", "granite"):
        if MARKS[family] in template:
            return family
    return "llama" if "tools" in template and '"parameters"' in template else None


class ToolCallReader:
    """Separates the text of a streamed answer from its tool calls.

    Args:
        family: how this model writes them.
        names: the tools that exist; a call of another one is text.

    Example:
        >>> reader = ToolCallReader("hermes", {"add"})
        >>> reader.push("Let me see.<tool_"), reader.push('call>{"name": "add", "arguments": {"a": 1}}</tool_call>')
        ('Let me see.', '')
        >>> text, (call,) = reader.finish()
        >>> text, call.name, call.arguments
        ('', 'add', '{"a": 1}')
    """

    def __init__(self, family: Family, names: Collection[str]) -> None:
        self._family = family
        self._names = frozenset(names)
        self._pending = ""  # may be the beginning of a mark
        self._held: str | None = None  # everything from the first mark on
        self._at_start = True

    def push(self, text: str) -> str:
        """Take the next piece of the answer; returns text that is certainly not part of a call."""
        if self._held is not None:
            self._held += text
            return ""
        self._pending += text
        start = self._find_start()
        if start < 0:
            start = len(self._pending) - overlap(self._pending, MARKS[self._family])
        else:
            self._held = self._pending[start:]
        shown, self._pending = self._pending[:start], self._pending[start:]
        return shown

    def finish(self) -> tuple[str, list[ToolCall]]:
        """The answer is complete: the text that is left, and the calls."""
        if self._held is None:
            return self._pending, []
        return parse_tool_calls(self._held, self._family, self._names)

    def _find_start(self) -> int:
        begun = self._pending.lstrip()
        if self._family == "llama" and self._at_start and begun:
            self._at_start = False
            if begun.startswith("{"):  # without a mark, only a whole answer is a call
                return 0
        return self._pending.find(MARKS[self._family])


def parse_tool_calls(text: str, family: Family, names: Collection[str]) -> tuple[str, list[ToolCall]]:
    """The text around the calls of a complete answer, and the calls; what is malformed stays text."""
    if family == "llama":
        return _parse_whole(text, frozenset(names))
    left, calls, place = "", [], 0
    while (start := text.find(MARKS[family], place)) >= 0:
        found = _READERS[family](text, start + len(MARKS[family]))
        made = _checked(found[0], names) if found else None
        if found is None or made is None:
            left += text[place : start + len(MARKS[family])]
            place = start + len(MARKS[family])
            continue
        left += text[place:start]
        calls += made
        place = _end(_CLOSING, text, found[1])
    left += text[place:]
    return (left if left.strip() else ""), calls


Found = tuple[list[Any], int] | None  # the calls as JSON, and where the text goes on


def _parse_whole(text: str, names: Collection[str]) -> tuple[str, list[ToolCall]]:
    place = _end(_BLANK, text, 0)
    if text.startswith(MARKS["llama"], place):
        place = _end(_BLANK, text, place + len(MARKS["llama"]))
    entries = []
    while place < len(text):
        found = _json_at(text, place)
        if found is None:
            return text, []
        entries += found[0]
        place = _end(_BLANK, text, found[1])
    made = _checked(entries, names)
    return ("", made) if made else (text, [])


def _json_at(text: str, place: int) -> Found:
    """The JSON value that begins at `place`, as a list; of a list, its items."""
    try:
        value, end = _decoder.raw_decode(text, _end(_BLANK, text, place))
    except (ValueError, RecursionError):
        return None
    return (value if isinstance(value, list) else [value]), end


def _named_at(text: str, place: int) -> Found:
    """`[{…}]`, or a name followed by its arguments."""
    named = _NAMED.match(text, place)
    if named is None:
        return _json_at(text, place)
    found = _json_at(text, named.end())
    return found and ([{"name": named[1], "arguments": found[0][0]}], found[1])


def _checked(entries: list[Any], names: Collection[str]) -> list[ToolCall] | None:
    calls = [_call(entry, names) for entry in entries]
    return [call for call in calls if call] if calls and all(calls) else None


def _call(entry: Any, names: Collection[str]) -> ToolCall | None:
    if not isinstance(entry, dict) or entry.get("name") not in names:
        return None
    arguments = entry.get("arguments", entry.get("parameters", {}))
    if isinstance(arguments, str):
        found = _json_at(arguments, 0)
        arguments = found[0][0] if found and found[0] else None
    if not isinstance(arguments, dict):
        return None
    letters = "".join(secrets.choice(_ID_LETTERS) for _ in range(_ID_LENGTH))
    return ToolCall(letters, entry["name"], json.dumps(arguments, ensure_ascii=False))


def _end(pattern: re.Pattern[str], text: str, place: int) -> int:
    match = pattern.match(text, place)
    return match.end() if match else place


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


_decoder = json.JSONDecoder(parse_constant=_no_constant)
_READERS: dict[Family, Callable[[str, int], Found]] = {"hermes": _json_at, "mistral": _named_at, "granite": _json_at}
