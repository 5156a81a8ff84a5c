"""The grammar of tool calls in a model's own format: the right names, and arguments of each tool's own schema."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...errors import RequestError
from ...sampling.grammar import JSON_OPTIONS, StructuredOutput
from ...sampling.lazy import Beginning
from ...sampling.schema import closed
from .argument_grammar import ArgumentRules
from .format import ID, MARK, CallFrame, ChatFormat

if TYPE_CHECKING:
    from ...text.tokenizer import Tokenizer

MOST_CALLS = 8
_NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
_FINAL = "<|channel|>final<|message|>"
_EVERYBODY = "all\n"  # the recipient of functionary's text
_COMMENTARY = "<|channel|>commentary to=functions."
_ANALYSIS = "<|channel|>analysis<|message|>"


class CallGrammar:
    """Makes grammars for calls of these tools.

    Args:
        chat: how the model writes; `chat.calls` is not None.
        tools: in OpenAI's format.
        tokenizer: knows which marks are tokens of their own.
        parallel: allow several calls.
        in_thought: the prompt has opened a thought.

    Raises:
        RequestError: there is no tool, or one is malformed.
    """

    def __init__(
        self,
        chat: ChatFormat,
        tools: Sequence[Mapping[str, Any]],
        tokenizer: "Tokenizer",
        *,
        parallel: bool = True,
        in_thought: bool = False,
    ) -> None:
        if not tools or chat.calls is None:
            raise RequestError("tool_choice asks for a tool call, and there are no tools.")
        self._chat = chat
        self._frame = chat.calls
        self._tools = [_named_schema(tool) for tool in tools]
        self._tokenizer = tokenizer
        self._parallel = parallel and self._frame.shape != "channels"
        thoughts = chat.thoughts
        self._thought = (thoughts.open_mark, thoughts.close_mark) if thoughts else None
        self._in_thought = in_thought

    def forced(self) -> StructuredOutput:
        """At least one call, and nothing else but a thought before it."""
        start = f"start: {self._before()} {self._calls(self._prefix(), self._between())}"
        return self._output(start, self._after_thought())

    def lazy(self) -> StructuredOutput | None:
        """Anything; but what opens a call begins one. None where nothing could tell that it opens one."""
        frame = self._frame
        if frame.shape == "recipients":
            text = self._literal(_EVERYBODY)
            calls = self._calls("", self._between())
            start = f"start: {calls} | {text} TEXT | {text} before {calls}"
            return self._output(f'{start}\nTEXT: /(.|\\n)*/\nbefore[suffix=">>>"]: /(.|\\n)*/', None)
        if frame.bare and frame.shape != "json":
            return None
        mark, rest = self._opening()
        first = "body" if frame.bare or frame.shape == "channels" else "call"
        start = f"start: {self._calls(self._literal(rest), self._between(), first)}"
        thought = None if frame.shape == "channels" else self._thought
        beginning = Beginning(marks=(mark,), at_start=frame.bare, thought=thought, in_thought=self._in_thought)
        return self._output(start, beginning)

    def with_answer(self, wanted: StructuredOutput) -> StructuredOutput:
        """Calls, or an answer as `wanted` says."""
        answer = answer_rule(wanted)
        calls = self._calls(self._prefix(), self._between())
        final = f"{self._literal(_FINAL)} answer" if self._frame.shape == "channels" else "answer"
        final = f"{self._literal(_EVERYBODY)} answer" if self._frame.shape == "recipients" else final
        start = f"start: {self._before()} called | {self._before()} {final}\ncalled: {calls}\n{answer}"
        return self._output(start, self._after_thought())

    def answer_only(self, wanted: StructuredOutput) -> StructuredOutput:
        """`wanted`, where the model announces its answer."""
        announced = self._literal(_FINAL if self._frame.shape == "channels" else _EVERYBODY)
        return self._output(f"start: {self._before()} {announced} answer\n{answer_rule(wanted)}", None)

    def _output(self, start: str, beginning: Beginning | None) -> StructuredOutput:
        return StructuredOutput(lark="\n".join([start, *self._rules()]), beginning=beginning)

    def _after_thought(self) -> Beginning | None:
        if self._thought is None or self._frame.shape == "channels":
            return None
        return Beginning(thought=self._thought, in_thought=self._in_thought)

    def _before(self) -> str:
        """What gpt-oss may think before: its thoughts are messages, and so part of the grammar."""
        if self._frame.shape != "channels":
            return ""
        return f"({self._literal(_ANALYSIS)} /(.|\\n)*/ {self._literal('<|end|><|start|>assistant')})?"

    def _prefix(self) -> str:
        frame = self._frame
        if frame.shape in ("recipients", "channels"):  # the prompt has opened the first
            return ""
        return self._literal((frame.section_open + frame.open).lstrip())

    def _between(self) -> str:
        frame = self._frame
        return self._literal(frame.close + frame.separator + frame.open) if frame.shape != "channels" else ""

    def _opening(self) -> tuple[str, str]:
        """What begins calls, and what follows it up to the first call."""
        frame = self._frame
        if frame.shape == "channels":
            return "to=functions.", ""
        opening = (frame.section_open + frame.open).lstrip()
        if frame.bare:
            return opening + frame.before_name, ""
        mark = frame.section_mark or frame.open_mark
        return mark, opening.partition(mark)[2]

    def _calls(self, prefix: str, between: str, first: str = "call") -> str:
        more = f"({between} call){{0,{MOST_CALLS - 1}}}" if self._parallel else ""
        closing = self._literal(self._frame.close.rstrip() if self._frame.shape != "channels" else "")
        return f"{prefix} {first} {more} {closing} {self._literal(self._frame.section_close)}"

    def _rules(self) -> Iterator[str]:
        names = [f"tool{i}" for i in range(len(self._tools))]
        before = self._frame.before_name if self._frame.shape in ("json", "keyed") else ""
        before = _COMMENTARY if self._frame.shape == "channels" else before
        yield f"call: {self._literal(before)} body"
        yield f"body: {' | '.join(names)}"
        for rule, (name, schema) in zip(names, self._tools, strict=True):
            if self._frame.shape in ("tagged", "python", "marked"):
                yield from ArgumentRules(self._frame, self._literal, rule, schema).rules(name)
            else:
                yield f"{rule}: {self._literal(name)} {self._header()} {rule}_arguments {self._footer()}"
                yield f"{rule}_arguments: {json_rule(schema)}"

    def _header(self) -> str:
        """What stands between a name and the arguments; gpt-oss's models write it in several ways."""
        before = self._frame.before_arguments
        if self._frame.shape != "channels":
            return self._literal(before)
        ways = (before, "<|message|>", " json<|message|>", "<|channel|>commentary json<|message|>")
        return f"({' | '.join(map(self._literal, ways))})"

    def _footer(self) -> str:
        return self._literal(self._frame.after_arguments) if self._frame.shape in ("json", "keyed", "named") else ""

    def _literal(self, text: str) -> str:
        """This text in Lark: marks that are tokens of their own as such, ids as a regular expression."""
        return literal_rule(text, self._tokenizer, self._frame)


def literal_rule(text: str, tokenizer: "Tokenizer", frame: CallFrame) -> str:
    """This text in Lark."""
    marks = {
        mark for mark in (*MARK.findall(text), *frame.begin_marks, frame.quote) if mark and _is_token(mark, tokenizer)
    }
    parts = re.split("(" + "|".join(map(re.escape, [ID, *sorted(marks, key=len, reverse=True)])) + ")", text)
    made = []
    for part in filter(None, parts):
        if part == ID:
            made.append(f"/{frame.id_pattern}/")
        elif part in marks:
            made.append(f"<[{tokenizer.id_of(part)}]>")
        else:
            made.append(json.dumps(part, ensure_ascii=False))
    return " ".join(made)


def json_rule(schema: Mapping[str, Any]) -> str:
    """JSON of this schema in Lark."""
    return f"%json {json.dumps(dict(schema) | {'x-guidance': JSON_OPTIONS})}"


def answer_rule(wanted: StructuredOutput) -> str:
    """The rule `answer` for a structured output.

    Raises:
        RequestError: it is a grammar, which cannot be a part of another.
    """
    if wanted.kind == "json_schema":
        return f"answer: {json_rule(closed(json.loads(wanted.source)))}"
    if wanted.kind == "json_object":
        return f"answer: {json_rule({'type': 'object'})}"
    if wanted.kind == "choice":
        return "answer: " + " | ".join(json.dumps(text) for text in json.loads(wanted.source))
    if wanted.kind == "regex":
        return f"answer: /{wanted.source.replace('/', chr(92) + '/')}/"
    raise RequestError("structured_outputs.grammar cannot go with tools: use a schema, a regex or a choice.")


def after_thought(wanted: StructuredOutput, chat: ChatFormat, *, in_thought: bool) -> StructuredOutput:
    """A structured output that holds for what follows the model's thought."""
    if chat.thoughts is None:
        return wanted
    thought = (chat.thoughts.open_mark, chat.thoughts.close_mark)
    return replace(wanted, beginning=Beginning(thought=thought, in_thought=in_thought))


def _is_token(mark: str, tokenizer: "Tokenizer") -> bool:
    token_id = tokenizer.id_of(mark)
    return token_id is not None and tokenizer.is_added(token_id)


def _named_schema(tool: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    function = tool.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RequestError(f"tools: expected {{'type': 'function', 'function': {{'name': …}}}}, got {tool!r:.80}.")
    schema = function.get("parameters")
    if not isinstance(schema, Mapping) or not schema or schema in ({"type": "object"},):
        return function["name"], dict(_NO_ARGUMENTS)
    return function["name"], closed({"type": "object"} | dict(schema))
