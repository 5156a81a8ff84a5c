"""How a model writes thoughts and tool calls, as data: a reader, a grammar and the history are made from it.

An answer is `[thought] [text] section_open open CALL close separator open CALL close … section_close`, and a call is,
by its shape:

json       {"name": NAME, "arguments": {…}}, one or a list of them
keyed      {NAME: {…}}, one or a list of them
named      NAME before_arguments {…}
tagged     NAME, then before_key KEY before_value VALUE after_value for each argument
python     NAME(KEY=VALUE, …), one or a list of them
marked     NAME{KEY:VALUE,…}, whose strings stand between marks
channels   messages with a header that names a channel and a recipient
recipients messages, each after a line that names its recipient
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

Shape = Literal["json", "keyed", "named", "tagged", "python", "marked", "channels", "recipients"]
ID = "\0"  # where a text of a frame has an id of the model's own making
_LAST_MARK = re.compile(r".*[>\]]", re.DOTALL)
MARK = re.compile(r"<\|\"\|>|<[^<>\s\"={}]{1,40}>|\[/?[A-Z_]{2,30}\]")

_WHOLE_MARK = re.compile(r"[<\[◁][^\s\"{}]{1,60}[>\]▷]|<\|\"\|>")


@dataclass(frozen=True)
class ToolCall:
    """One call that the model asks for; `arguments` is the text of a JSON object, as in OpenAI's format."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, kw_only=True)
class CallFrame:
    """Where the parts of calls stand; texts are exactly as the template writes them, blanks included.

    Attributes:
        shape: what a call is.
        section_open: opens all calls.
        section_close: closes all calls.
        open: opens one call, up to its name (shapes json and keyed: up to the object).
        close: closes one call.
        separator: between two calls.
        before_name: of shape json: from the brace to the name; `ID` is an id.
        before_arguments: from the name to the arguments; `ID` is an id.
        after_arguments: of shape json: from the arguments to the brace.
        name_key: of shape json.
        arguments_key: of shape json.
        id_key: of shape json, or None.
        before_key, before_value, after_value: of shape tagged, around each argument.
        quote: of shape marked, around a string.
        id_pattern: a regular expression of the ids that the model makes.
        id_is_name: the id is the name with its namespace and the number of the call: `functions.add:0`.
        bare: nothing opens a call: only a whole answer is one.
        aliases: other marks by which these models open calls.
        code_mark: opens calls of built-in tools in the model's own code, or None.
    """

    shape: Shape
    section_open: str = ""
    section_close: str = ""
    open: str = ""
    close: str = ""
    separator: str = ""
    before_name: str = '{"name": "'
    before_arguments: str = '", "arguments": '
    after_arguments: str = "}"
    name_key: str = "name"
    arguments_key: str = "arguments"
    id_key: str | None = None
    before_key: str = ""
    before_value: str = ""
    after_value: str = ""
    quote: str = ""
    id_pattern: str = "[a-zA-Z0-9]{9}"
    id_is_name: bool = False
    aliases: tuple[str, ...] = ()
    code_mark: str | None = None

    @property
    def listed(self) -> bool:
        """Whether all calls stand in one list."""
        return self.section_open.rstrip().endswith("[")

    @cached_property
    def section_mark(self) -> str:
        """What announces calls, without blanks; "" if nothing does."""
        return self.section_open.strip().removesuffix("[").rstrip()

    @cached_property
    def open_mark(self) -> str:
        """What announces one call, without blanks and what leads to its name; "" if nothing does."""
        found = _LAST_MARK.match(self.open)
        return (found[0] if found else self.open).strip()

    @property
    def before_call(self) -> str:
        """What stands between the mark and the name."""
        return self.open.lstrip()[len(self.open_mark) :]

    @property
    def close_mark(self) -> str:
        """What closes one call, without blanks."""
        return self.close.strip()

    @cached_property
    def closing_marks(self) -> tuple[str, ...]:
        """What may follow a call that was read, part by part."""
        _, _, rest = self.close_mark.partition(">") if self.shape == "tagged" else ("", "", self.close_mark)
        return tuple(rest.split())

    @cached_property
    def end_marks(self) -> tuple[str, ...]:
        """What may follow the last call, part by part."""
        return tuple(self.section_close.strip().removeprefix("]").split())

    @cached_property
    def bare(self) -> bool:
        """Whether nothing opens a call, so that only a whole answer is one."""
        return not (self.section_mark or self.open_mark)

    @cached_property
    def begin_marks(self) -> tuple[str, ...]:
        """What may begin calls."""
        return tuple(dict.fromkeys(filter(None, (self.section_mark, self.open_mark, self.code_mark, *self.aliases))))

    def texts(self) -> Iterator[str]:
        """Every text of the frame, for the marks in it."""
        yield from (self.section_open, self.open, self.before_arguments, self.before_key, self.before_value)
        yield from (self.after_value, self.close, self.separator, self.section_close, self.quote)
        yield from ((self.code_mark or ""), self.before_name, self.after_arguments)


@dataclass(frozen=True, kw_only=True)
class ThoughtFrame:
    """Where thoughts stand: `open` THOUGHT `close`, as the template writes them."""

    open: str
    close: str

    @property
    def open_mark(self) -> str:
        """`open` without blanks."""
        return self.open.strip()

    @property
    def close_mark(self) -> str:
        """`close` without blanks."""
        return self.close.strip()


@dataclass(frozen=True, kw_only=True)
class ChatFormat:
    """What is known of how a model answers.

    Attributes:
        calls: how it writes tool calls, or None if it writes none, or in no way that could be read.
        thoughts: how it writes thoughts, or None.
        wrapper: marks around what it says to the user, such as `<response>` and `</response>`, or None.
        source: where the frame of calls comes from: "template", "table", "fallback", or "" without calls.
        takes_tools: whether the template shows tools to the model.
        shows_calls: whether the template writes the calls of earlier answers.
        needs_content: the template fails on an answer that has calls and no content.
        text_arguments: the template wants arguments of earlier calls as JSON text, not as objects.
        variables: what the template reads beside messages and tools, such as `enable_thinking`.
        problem: why tool calls cannot be read, or "".
    """

    calls: CallFrame | None = None
    thoughts: ThoughtFrame | None = None
    wrapper: tuple[str, str] | None = None
    source: str = ""
    takes_tools: bool = False
    shows_calls: bool = True
    needs_content: bool = False
    text_arguments: bool = False
    variables: frozenset[str] = frozenset()
    problem: str = ""

    @cached_property
    def marks(self) -> frozenset[str]:
        """Everything in the format that may be a token of its own."""
        found = {mark for text in self._texts() for mark in (text.strip(), *MARK.findall(text))}
        return frozenset(mark for mark in found if _WHOLE_MARK.fullmatch(mark))

    def _texts(self) -> Iterable[str]:
        if self.calls:
            yield from self.calls.texts()
            if self.calls.shape == "channels":
                yield from CHANNEL_MARKS
        if self.thoughts:
            yield from (self.thoughts.open, self.thoughts.close)
        yield from self.wrapper or ()


CHANNEL_MARKS = (
    *("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"),
    *("<|end|>", "<|call|>", "<|return|>"),
)
