"""Finds out how a model writes tool calls and thoughts: its template renders known ones, and the frame is what differs.

Everything that is looked for is unique, so that a place in the rendered text is a part of a call. What stands before
the first call, between two, and after the last gives the marks: what both places before a call end with opens a call,
what both places after one begin with closes it.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...errors import OnnxlmError
from .arguments import loaded, members
from .format import ID, CallFrame, ThoughtFrame

Render = Callable[..., str]
_NAMES = ("zqfirst", "zqsecond")
_KEYS = ("zkone", "zktwo")
_VALUES = (("zvaone", "zvatwo"), ("zvbone", "zvbtwo"))
_IDS = ("zid000001", "zid000002")
_ASKED, _SAID, _THOUGHT, _RESULT, _AGAIN = "zask", "zsaid", "zthought", "zresult", "zagain"
_UNITS = re.compile(r"<[^<>]*>|\[/?[A-Z_]+\]|\s|[^<\[\s]+|.", re.DOTALL)
_LONGEST = 400  # characters of a mark
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "d",
            "parameters": {
                "type": "object",
                "properties": {key: {"type": "string", "description": "d"} for key in _KEYS},
                "required": list(_KEYS),
            },
        },
    }
    for name in _NAMES
]


class TemplateProbe:
    """Renders known conversations with a template.

    Args:
        render: messages and keyword arguments `tools`, `add_generation_prompt`, `text_arguments` to text; raises
            OnnxlmError where the template refuses.
        ends: texts of the tokens that end an answer.
    """

    def __init__(self, render: Render, ends: Sequence[str]) -> None:
        self._render = render
        self._ends = tuple(filter(None, ends))
        self.text_arguments = False
        self.found_thoughts: ThoughtFrame | None = None
        self.shows_calls = False  # some rendering had the arguments of an earlier call

    def takes_tools(self) -> bool:
        """Whether tools change the prompt."""
        plain, with_tools = self._try([_user()]), self._try([_user()], tools=TOOLS)
        return with_tools is not None and plain != with_tools and _NAMES[0] in with_tools

    def calls(self) -> CallFrame | None:
        """The frame of calls, or None if the template writes none, or in no way that can be read."""
        for text_arguments in (False, True):
            for ids in (_IDS, tuple(f"functions.{name}:{i}" for i, name in enumerate(_NAMES))):
                for content in ("", None):
                    self.text_arguments = text_arguments
                    frame = self._frame(ids, content)
                    if frame is not None:
                        return frame
        self.text_arguments = False
        return None

    def needs_content(self) -> bool:
        """Whether an answer with calls and no content fails, though it is written with one."""
        return self.shows_calls and self._turn(_IDS[:1], None) is None

    def thoughts(self) -> ThoughtFrame | None:
        """Where thoughts of earlier answers stand, or None if the template leaves them out."""
        said = {"role": "assistant", "content": _SAID, "reasoning_content": _THOUGHT}
        called = said | {"tool_calls": _calls(_IDS[:1], self.text_arguments)}
        for turns in ([said], [said, _user(_AGAIN)], [called, *_results(_IDS[:1])]):
            text = self._try([_user(), *turns], tools=TOOLS if "tool_calls" in turns[0] else None)
            found = text and self._around_thought(text)
            if found:
                return found
        return None

    def wraps_results(self, mark: str) -> bool:
        """Whether this mark stands before what a tool returned."""
        turn = {"role": "assistant", "content": "", "tool_calls": _calls(_IDS[:1], self.text_arguments)}
        text = self._try([_user(), turn, *_results(_IDS[:1])], tools=TOOLS) or ""
        return text[: max(text.find(_RESULT), 0)].rstrip().endswith(mark)

    def _around_thought(self, text: str) -> ThoughtFrame | None:
        place = text.find(_THOUGHT)
        if place < 0:
            return None
        rest = text[place + len(_THOUGHT) :]
        close = re.match(r"\s*(<[^<>]+>|\[[^\[\]]+\]|◁[^◁▷]+▷)\s*", rest)
        opened = re.search(r"(<[^<>]+>(?:thought)?|\[[^\[\]]+\]|◁[^◁▷]+▷|[^\n<>]+:)\s*$", text[:place])
        if close is None or opened is None or close[1] in self._ends:
            return None
        return ThoughtFrame(open=opened[0], close=close[0])

    def _frame(self, ids: Sequence[str], content: str | None) -> CallFrame | None:
        one, two = self._turn(ids[:1], content), self._turn(ids, content)
        found = _Calls(two, ids).frame() if two is not None else None
        return found or (_Calls(one, ids[:1]).frame() if one is not None else None)

    def _turn(self, ids: Sequence[str], content: str | None) -> str | None:
        """What the template writes for an answer with calls: from its beginning to its end token."""
        turn = {"role": "assistant", "content": content, "tool_calls": _calls(ids, self.text_arguments)}
        before = self._try([_user()], tools=TOOLS)
        for following in (_results(ids), [*_results(ids), _user(_AGAIN)], []):
            text = self._try([_user(), turn, *following], tools=TOOLS)
            if before is None or text is None:
                continue
            answer = text[len(_common(before, text)) :]
            if _VALUES[0][0] in answer:
                self.shows_calls = True
                return self._without_frame(answer)
        return None

    def _without_frame(self, answer: str) -> str:
        """Without the header of the turn, and without what follows it."""
        prompts = (self._try([_user()], tools=TOOLS), self._try([_user()], tools=TOOLS, add_generation_prompt=True))
        header = (prompts[1] or "")[len(_common(prompts[0] or "", prompts[1] or "")) :]
        shared = _shared_start(_UNITS.findall(header), _UNITS.findall(answer))
        answer = self._without_empty_thought("".join(_UNITS.findall(answer)[shared:]))
        last = max(answer.rfind(value) for value in _VALUES[0] + _VALUES[1])
        stops = [answer.find(end, last) for end in (*self._ends, *self._turn_end(), _RESULT, _AGAIN)]
        return answer[: min((stop for stop in stops if stop >= 0), default=len(answer))]

    def _without_empty_thought(self, answer: str) -> str:
        for mark in (self.found_thoughts.open_mark, self.found_thoughts.close_mark) if self.found_thoughts else ():
            if answer.lstrip().startswith(mark):
                answer = answer.lstrip().removeprefix(mark).lstrip()
        return answer

    def _turn_end(self) -> Iterator[str]:
        """What follows the text of an answer."""
        text = self._try([_user(), {"role": "assistant", "content": _SAID}, _user(_AGAIN)]) or ""
        rest = text[text.rfind(_SAID) + len(_SAID) :] if _SAID in text else ""
        found = re.match(r"\s*(<[^<>]+>|\[[^\[\]]+\])", rest)
        if found:
            yield found[1]

    def _try(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str | None:
        options = {"add_generation_prompt": False, "tools": None} | options
        try:
            return self._render(messages, text_arguments=self.text_arguments, **options)
        except OnnxlmError:
            return None


class _Calls:
    """One or two calls as the template wrote them."""

    def __init__(self, text: str, ids: Sequence[str]) -> None:
        self._text = text
        self._count = len(ids)
        self._ids_are_names = ids[0].startswith("functions.")

    def frame(self) -> CallFrame | None:
        """The frame, if every part of every call is found."""
        for read in (self._json, self._named, self._marked, self._tagged, self._python):
            spans = self._spans(read)
            if spans is not None:
                frame, places = spans
                return self._with_marks(frame, places)
        return None

    def _spans(self, read: Any) -> tuple[CallFrame, list[tuple[int, int]]] | None:
        found = [read(i) for i in range(self._count)]
        if any(one is None for one in found):
            return None
        frames = [frame for frame, _ in found]
        return frames[0], [span for _, span in found]

    def _with_marks(self, frame: CallFrame, spans: Sequence[tuple[int, int]]) -> CallFrame:
        text = self._text
        before, after = text[: spans[0][0]], _closing(text[spans[-1][1] :])
        if len(spans) < 2:
            return replace(frame, open=_tail(before), close=after, separator="\n" if before.strip() else "; ")
        between = text[spans[0][1] : spans[1][0]]
        units = [_UNITS.findall(part) for part in (before, between, after)]
        shared = _shared_end(units[0], units[1])
        opened = "".join(units[0][len(units[0]) - shared :])
        gap = units[1][: len(units[1]) - shared]
        closed = _shared_start(gap, units[2])
        section = _tail("".join(units[0][: len(units[0]) - shared]))
        return replace(
            frame,
            section_open=section,
            open=opened,
            close="".join(gap[:closed]),
            separator="".join(gap[closed:]),
            section_close="".join(units[2][closed:]) if section.strip() else "",  # else it belongs to the turn
        )

    def _name(self, i: int) -> int:
        start = -1 if i == 0 else self._text.find(_NAMES[0]) + len(_NAMES[0]) - 1
        return self._text.find(_NAMES[i], start + 1)

    def _json(self, i: int) -> tuple[CallFrame, tuple[int, int]] | None:
        """An object that holds name and arguments; or whose key is the name."""
        name = self._name(i)
        for start in (brace.start() for brace in re.finditer(r"\{", self._text[: max(name, 0)])):
            end = _object_end(self._text, start)
            if end is None or end <= name:
                continue
            whole = self._text[start:end]
            entries = members(whole) or {}
            if list(entries) == [_NAMES[i]]:
                return CallFrame(shape="keyed", before_name='{"', before_arguments='": '), (start, end)
            found = _object_frame(whole, entries, i, (start, end))
            if found is not None:
                return found
        return None

    def _named(self, i: int) -> tuple[CallFrame, tuple[int, int]] | None:
        name = self._name(i)
        start = self._text.find("{", name)
        end = _object_end(self._text, start) if name >= 0 and start >= 0 else None
        if end is None or list(members(self._text[start:end]) or ()) != list(_KEYS):
            return None
        between = self._text[name + len(_NAMES[i]) : start]
        between = re.sub(r"(?<=:)\d+" if self._ids_are_names else _IDS[i], ID, between)
        frame = CallFrame(shape="named", before_arguments=between, after_arguments="", id_is_name=self._ids_are_names)
        return replace(frame, id_pattern="[0-9]+") if self._ids_are_names else frame, (name, end)

    def _tagged(self, i: int) -> tuple[CallFrame, tuple[int, int]] | None:
        places = self._places(i)
        if places is None:
            return None
        name, (key, value), (second, last) = places
        after_name = self._text[name + len(_NAMES[i]) : key]
        before_value = self._text[key + len(_KEYS[0]) : value]
        after_value_and_key = self._text[value + len(_VALUES[i][0]) : second]
        rest = self._text[last + len(_VALUES[i][1]) :]
        units = [_UNITS.findall(part) for part in (after_name, after_value_and_key)]
        shared = _shared_end(units[0], units[1])
        before_key = "".join(units[1][len(units[1]) - shared :])
        after_value = "".join(units[1][: len(units[1]) - shared])
        if not (before_key.strip() and after_value.strip() and rest.startswith(after_value.rstrip())):
            return None
        frame = CallFrame(
            shape="tagged",
            before_arguments="".join(units[0][: len(units[0]) - shared]),
            before_key=before_key,
            before_value=before_value,
            after_value=after_value,
        )
        end = last + len(_VALUES[i][1]) + len(_common(after_value, rest))
        return frame, (name, end)

    def _python(self, i: int) -> tuple[CallFrame, tuple[int, int]] | None:
        written = re.compile(
            rf"{_NAMES[i]}\(\s*{_KEYS[0]}=(['\"]){_VALUES[i][0]}\1,\s*{_KEYS[1]}=\1{_VALUES[i][1]}\1\)"
        )
        found = written.search(self._text)
        return (CallFrame(shape="python"), found.span()) if found else None

    def _marked(self, i: int) -> tuple[CallFrame, tuple[int, int]] | None:
        (one, two), (first, second) = _KEYS, _VALUES[i]
        pattern = rf"{_NAMES[i]}\{{{one}:(?P<quote>[^:,{{}}\s]+){first}(?P=quote),{two}:(?P=quote){second}(?P=quote)\}}"
        found = re.search(pattern, self._text)
        return (CallFrame(shape="marked", quote=found["quote"]), found.span()) if found else None

    def _places(self, i: int) -> tuple[int, tuple[int, int], tuple[int, int]] | None:
        name = self._name(i)
        key = self._text.find(_KEYS[0], name)
        value = self._text.find(_VALUES[i][0], key)
        second = self._text.find(_KEYS[1], value)
        last = self._text.find(_VALUES[i][1], second)
        found = (name, key, value, second, last)
        return None if min(found) < 0 or list(found) != sorted(found) else (name, (key, value), (second, last))


def _object_frame(
    whole: str, entries: Mapping[str, str], i: int, span: tuple[int, int]
) -> tuple[CallFrame, tuple[int, int]] | None:
    if set(entries) == {"type", "function"}:
        inner = entries["function"]
        found = _object_frame(inner, members(inner) or {}, i, (0, 0))
        if found is None:
            return None
        start = whole.find(inner)
        before, after = whole[:start], whole[start + len(inner) :]
        frame = found[0]
        return replace(
            frame, before_name=before + frame.before_name, after_arguments=frame.after_arguments + after
        ), span
    keys = {key: loaded(value) for key, value in entries.items()}
    name = next((key for key, value in keys.items() if value == _NAMES[i]), None)
    arguments = next((key for key, value in keys.items() if _holds_arguments(value)), None)
    if name is None or arguments is None:
        return None
    ids = [key for key in keys if key not in (name, arguments) and isinstance(keys[key], str)]
    id_key = next((key for key in ids if keys[key] == _IDS[i] or str(keys[key]).isdecimal()), None)
    if id_key is not None:
        whole = whole.replace(entries[id_key], f'"{ID}"', 1)
    start = whole.find(_NAMES[i])
    before, rest = whole[:start], whole[start + len(_NAMES[i]) :]
    place = rest.find(entries[arguments])
    if place < 0:
        return None  # the arguments stand before the name
    return CallFrame(
        shape="json",
        before_name=before,
        before_arguments=rest[:place],
        after_arguments=rest[place + len(entries[arguments]) :],
        name_key=name,
        arguments_key=arguments,
        id_key=id_key,
        id_pattern="[0-9]+" if id_key and str(keys[id_key]).isdecimal() else CallFrame.id_pattern,
    ), span


def _holds_arguments(value: Any) -> bool:
    value = loaded(value) if isinstance(value, str) else value
    return isinstance(value, dict) and list(value) == list(_KEYS)


def _object_end(text: str, start: int) -> int | None:
    try:
        value, end = json.JSONDecoder(strict=False).raw_decode(text, start)
    except (ValueError, RecursionError):
        return None
    return end if isinstance(value, dict) else None


def _tail(text: str) -> str:
    """What opens calls is the end of what stands before them: more than a line of words is no mark."""
    return text if len(text) <= _LONGEST else ""


def _closing(text: str) -> str:
    """What closes calls ends with a mark; what follows belongs to the turn."""
    found = re.match(r".*[>\]})`]", text, re.DOTALL)
    return found[0] if found else ""


def _user(text: str = _ASKED) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _calls(ids: Sequence[str], text_arguments: bool) -> list[dict[str, Any]]:
    made = []
    for i, call_id in enumerate(ids):
        arguments: Any = dict(zip(_KEYS, _VALUES[i], strict=True))
        arguments = json.dumps(arguments) if text_arguments else arguments
        made.append({"id": call_id, "type": "function", "function": {"name": _NAMES[i], "arguments": arguments}})
    return made


def _results(ids: Sequence[str]) -> list[dict[str, Any]]:
    names = zip(ids, _NAMES, strict=False)
    return [{"role": "tool", "tool_call_id": i, "name": name, "content": _RESULT} for i, name in names]


def _common(first: str, second: str) -> str:
    """The longest beginning of both."""
    size = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), None)
    return first[: min(len(first), len(second)) if size is None else size]


def _shared_start(first: Sequence[str], second: Sequence[str]) -> int:
    size = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), None)
    return min(len(first), len(second)) if size is None else size


def _shared_end(first: Sequence[str], second: Sequence[str]) -> int:
    return _shared_start(first[::-1], second[::-1])
