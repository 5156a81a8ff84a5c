"""One answer planned: what the model is shown, what it may write, and how that is read. Server and Python share it."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from ..errors import MissingDependencyError, RequestError
from ..sampling.grammar import StructuredOutput
from .fallback import fallback_format, messages_with_tools
from .formats.format import ChatFormat
from .formats.grammar import CallGrammar, after_thought
from .formats.reader import AnswerReader
from .template import ChatTemplate

if TYPE_CHECKING:
    from ..text.tokenizer import Tokenizer

_log = logging.getLogger("onnxlm.chat")
Compile = Callable[[StructuredOutput], object]  # raises RequestError for what cannot be enforced


@dataclass(frozen=True, kw_only=True)
class ToolChoice:
    """Which tools a model may call, and whether it must.

    Attributes:
        mode: "none" shows it no tools; "auto" lets it call; "required" makes it call.
        allowed: names of those that may be called; None is all.
        parallel: several calls in one answer.
    """

    mode: Literal["none", "auto", "required"] = "auto"
    allowed: tuple[str, ...] | None = None
    parallel: bool = True


@dataclass(frozen=True, kw_only=True)
class AnswerPlan:
    """How one answer is asked for and read.

    Attributes:
        prompt: the rendered conversation.
        chat: how the model writes.
        schemas: of the arguments of each tool that may be called.
        structured: what the answer must be, or None.
        visible: special tokens that must reach the reader.
        in_thought: the prompt has opened a thought.
        keep_thoughts: leave thoughts in the text.
    """

    prompt: str
    chat: ChatFormat
    schemas: Mapping[str, Mapping[str, Any]]
    structured: StructuredOutput | None
    visible: frozenset[int]
    in_thought: bool
    keep_thoughts: bool

    def reader(self) -> AnswerReader:
        """A reader for one answer."""
        return AnswerReader(self.chat, self.schemas, in_thought=self.in_thought, keep_thoughts=self.keep_thoughts)


class AnswerPlanner:
    """Plans answers of one model.

    Args:
        template: of the model.
        tokenizer: of the model.
        compile: refuses a grammar that cannot be enforced.
        tool_fallback: describe tools in the prompt where the template has none.
        keep_thoughts: leave thoughts in the text.
    """

    def __init__(
        self,
        template: ChatTemplate,
        tokenizer: "Tokenizer",
        compile: Compile,  # noqa: A002  # what it does
        *,
        tool_fallback: bool = False,
        keep_thoughts: bool = False,
    ) -> None:
        self.template = template
        self.chat = fallback_format(template.format) if tool_fallback else template.format
        self._tokenizer = tokenizer
        self._compile = compile
        self._keep_thoughts = keep_thoughts

    def plan(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        choice: ToolChoice | None = None,
        structured: StructuredOutput | None = None,
        *,
        lazily: bool = True,
        **variables: Any,
    ) -> AnswerPlan:
        """The plan for an answer to `messages`.

        Args:
            messages: the conversation.
            tools: in OpenAI's format, checked.
            choice: which may be called.
            structured: what an answer that is no call must be.
            lazily: hold calls that the model makes by itself to the tools' schemas, from where they begin.
            variables: of the template.

        Raises:
            RequestError: this model cannot do that.
            ChatTemplateError: the template refused the conversation.
        """
        choice = choice or ToolChoice()
        shown = tuple(tools) if choice.mode != "none" else ()
        if shown and self.chat.calls is None:
            raise RequestError(f"tools: {self.chat.problem}.")
        prompt = self._render(messages, shown, variables)
        in_thought = self._opens_thought(prompt)
        callable_tools = [tool for tool in shown if choice.allowed is None or _name(tool) in choice.allowed]
        return AnswerPlan(
            prompt=prompt,
            chat=self.chat,
            schemas={_name(tool): tool["function"].get("parameters") or {} for tool in callable_tools},
            structured=self._structured(callable_tools, choice, structured, in_thought, lazily),
            visible=self._visible(),
            in_thought=in_thought,
            keep_thoughts=self._keep_thoughts,
        )

    def _render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]
    ) -> str:
        tools = [_without_strict(tool) for tool in tools]
        if self.chat.source == "fallback":
            messages, tools = messages_with_tools(messages, tools), []
        return self.template.render(messages, tools=tools, **variables)

    def _opens_thought(self, prompt: str) -> bool:
        thoughts = self.chat.thoughts
        return thoughts is not None and prompt.rstrip().endswith(thoughts.open_mark)

    def _structured(
        self,
        tools: Sequence[Mapping[str, Any]],
        choice: ToolChoice,
        wanted: StructuredOutput | None,
        in_thought: bool,
        lazily: bool,
    ) -> StructuredOutput | None:
        if not tools:
            return self._answer(wanted, in_thought)
        grammar = CallGrammar(self.chat, tools, self._tokenizer, parallel=choice.parallel, in_thought=in_thought)
        if choice.mode == "required":
            return grammar.forced()
        if wanted is not None:
            return grammar.with_answer(wanted)
        strict = any(tool["function"].get("strict") for tool in tools)
        return self._lazy(grammar, strict=strict) if lazily else None

    def _answer(self, wanted: StructuredOutput | None, in_thought: bool) -> StructuredOutput | None:
        if wanted is None:
            return None
        if self.chat.calls and self.chat.calls.shape in ("channels", "recipients"):
            return CallGrammar(self.chat, [_NOTHING], self._tokenizer).answer_only(wanted)
        return after_thought(wanted, self.chat, in_thought=in_thought)

    def _lazy(self, grammar: CallGrammar, *, strict: bool) -> StructuredOutput | None:
        """The grammar from where a call begins; without it where a schema cannot be enforced and need not be."""
        try:
            lazy = grammar.lazy()
            if lazy is not None:
                self._compile(lazy)
        except (RequestError, MissingDependencyError) as error:
            if strict:
                raise
            _log.warning("Calls are not held to the tools' schemas: %s", error)
            return None
        return lazy

    def _visible(self) -> frozenset[int]:
        ids = (self._tokenizer.id_of(mark) for mark in self.chat.marks)
        return frozenset(i for i in ids if i is not None)


def required(names: Sequence[str], *, parallel: bool = True) -> ToolChoice:
    """A call of one of these tools; of one tool, exactly one call."""
    return replace(ToolChoice(mode="required", allowed=tuple(names)), parallel=parallel and len(names) > 1)


def _without_strict(tool: Mapping[str, Any]) -> dict[str, Any]:
    """The tool as the model sees it: that its schema is enforced is no matter of the model."""
    function = {key: value for key, value in tool["function"].items() if key != "strict"}
    return {**tool, "function": function}


def _name(tool: Mapping[str, Any]) -> str:
    return str(tool["function"]["name"])


_NOTHING: Mapping[str, Any] = {"type": "function", "function": {"name": "nothing"}}
