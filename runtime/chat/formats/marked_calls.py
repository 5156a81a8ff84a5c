"""Calls of Gemma 4: `call:add{a:1,b:<|"|>text<|"|>}`, where strings stand between marks and keys have no quotes."""

import json
import re

from .arguments import Tools, loaded, make_call, object_of
from .cursor import Cursor, Steps
from .format import CallFrame, ToolCall

_LONGEST_NAME = 300
_WORD = re.compile(r"[^\s,:\[\]{}]+")
_BLANKS = re.compile(r"\s*")
_WORDS = {"None": "null", "True": "true", "False": "false"}
_DEEPEST = 100


def read_marked(cursor: Cursor, frame: CallFrame, tools: Tools) -> Steps[list[ToolCall] | None]:
    """One call up to the mark that closes it."""
    head, mark = yield from cursor.until(("{",), _LONGEST_NAME)
    name = head.strip().removeprefix(frame.before_call.strip()).strip()
    if not mark or name not in tools:
        return None
    parts, end = ["{"], frame.close_mark.removeprefix("}")
    inside = False
    while True:
        part, mark = yield from cursor.until((frame.quote,) if inside else (frame.quote, end))
        parts.append(part)
        if mark != frame.quote:
            break
        parts.append(mark)
        inside = not inside
    cursor.unread(mark)
    try:
        arguments, place = _Reader("".join(parts), frame.quote).object(0, 0)
    except (ValueError, IndexError):
        return None
    call = make_call(tools, name, arguments) if not "".join(parts)[place:].strip() else None
    return [call] if call else None


class _Reader:
    """Reads values into JSON. Each method takes a place and returns the JSON and the place behind it."""

    def __init__(self, text: str, quote: str) -> None:
        self._text = text
        self._quote = quote

    def object(self, place: int, depth: int) -> tuple[str, int]:
        found: dict[str, str] = {}
        place = self._skip(place + 1)
        while self._text[place] != "}":
            key, place = self._key(place)
            if key in found or self._text[place] != ":":
                raise ValueError("no member")
            found[key], place = self._value(self._skip(place + 1), depth + 1)
            place = self._comma(place, "}")
        return object_of(found), place + 1

    def _list(self, place: int, depth: int) -> tuple[str, int]:
        found = []
        place = self._skip(place + 1)
        while self._text[place] != "]":
            value, place = self._value(place, depth + 1)
            found.append(value)
            place = self._comma(place, "]")
        return "[" + ", ".join(found) + "]", place + 1

    def _value(self, place: int, depth: int) -> tuple[str, int]:
        if depth > _DEEPEST:
            raise ValueError("nested too deeply")
        if self._text.startswith(self._quote, place):
            text, place = self._string(place)
            return json.dumps(text, ensure_ascii=False), place
        if self._text[place] == "{":
            return self.object(place, depth)
        if self._text[place] == "[":
            return self._list(place, depth)
        found = _WORD.match(self._text, place)
        word = _WORDS.get(found[0], found[0]) if found else ""
        if found is None or (loaded(word) is None and word != "null"):
            raise ValueError("no value")
        return word, found.end()

    def _key(self, place: int) -> tuple[str, int]:
        if self._text.startswith(self._quote, place):
            key, place = self._string(place)
        else:
            end = self._text.index(":", place)
            key, place = self._text[place:end].strip(), end
        return key, self._skip(place)

    def _string(self, place: int) -> tuple[str, int]:
        start = place + len(self._quote)
        end = self._text.index(self._quote, start)
        return self._text[start:end], end + len(self._quote)

    def _comma(self, place: int, end: str) -> int:
        place = self._skip(place)
        if self._text[place] == ",":
            return self._skip(place + 1)
        if self._text[place] != end:
            raise ValueError("no comma")
        return place

    def _skip(self, place: int) -> int:
        found = _BLANKS.match(self._text, place)
        return found.end() if found else place
