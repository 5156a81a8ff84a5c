"""What a chat may ask for beside its messages: tools, and how much to think."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

from ..errors import OptionError, RequestError
from .function_schema import function_schema
from .thinking import thinking_variables

if TYPE_CHECKING:
    from .answer_plan import ToolChoice
    from .formats.format import ChatFormat

Tool = Callable[..., Any] | Mapping[str, Any]
_MODES = ("none", "auto", "required")


@dataclass(frozen=True, kw_only=True)
class ChatOptions:
    """Keywords of `LLM.chat`, beside sampling parameters and variables of the chat template.

    Args:
        tools: functions with type hints (see `function_schema`), or schemas in OpenAI's format.
        tool_choice: "auto"; "none" shows the model no tools; "required" makes it call one; a tool's name makes it call
            that one, once.
        parallel_tool_calls: several calls in one answer.
        reasoning_effort: "none", "minimal", "low", "medium", "high" or "xhigh".
        thinking_budget: most tokens of thoughts, where the template takes it.
        reasoning_format: "auto" tells thoughts apart from the text, "none" leaves them in it.
        tool_fallback: describe tools in the prompt where the template has none.

    Raises:
        OptionError: a value is none of these.
    """

    tools: Sequence[Tool] | None = None
    tool_choice: str = "auto"
    parallel_tool_calls: bool = True
    reasoning_effort: str | None = None
    thinking_budget: int | None = None
    reasoning_format: Literal["auto", "none"] = "auto"
    tool_fallback: bool = False

    def __post_init__(self) -> None:
        if self.reasoning_format not in ("auto", "none"):
            raise OptionError(f"reasoning_format must be 'auto' or 'none', got {self.reasoning_format!r:.40}.")
        names = [tool["function"]["name"] for tool in self.schemas()]
        if self.tool_choice not in (*_MODES, *names):
            known = ", ".join([*_MODES, *names])
            raise OptionError(f"tool_choice must be one of {known}, got {self.tool_choice!r:.60}.")
        if self.tool_choice not in ("none", "auto") and not names:
            raise OptionError("tool_choice asks for a call, and there are no tools.")

    @classmethod
    def names(cls) -> frozenset[str]:
        """The names of all fields."""
        return frozenset(field.name for field in fields(cls))

    def schemas(self) -> list[dict[str, Any]]:
        """The tools in OpenAI's format.

        Raises:
            OptionError, RequestError: a tool is neither a function nor a schema, or two have one name.
        """
        if isinstance(self.tools, Mapping | str):
            raise OptionError("tools must be a list of functions or schemas.")
        found = [_schema(tool) for tool in self.tools or ()]
        names = [tool["function"]["name"] for tool in found]
        if len(set(names)) < len(names):
            raise OptionError(f"tools: two have the same name: {', '.join(names)}.")
        return found

    def choice(self) -> "ToolChoice":
        """Which tools may be called."""
        from .answer_plan import ToolChoice, required

        if self.tool_choice in ("none", "auto", "required"):
            mode: Any = self.tool_choice
            return ToolChoice(mode=mode, parallel=self.parallel_tool_calls)
        return required([self.tool_choice])

    def thinking(self, chat: "ChatFormat") -> dict[str, Any]:
        """Variables for the template.

        Raises:
            RequestError: it has no place for what is asked.
        """
        return thinking_variables(chat, effort=self.reasoning_effort, budget=self.thinking_budget)


def _schema(tool: Tool) -> dict[str, Any]:
    if callable(tool):
        return function_schema(tool)
    if not isinstance(tool, Mapping):
        raise OptionError(f"tools: expected functions or schemas, got {tool!r:.60}.")
    described = dict(tool) if "function" in tool else {"type": "function", "function": dict(tool)}
    function = described["function"]
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RequestError(f"tools: expected {{'type': 'function', 'function': {{'name': …}}}}, got {tool!r:.80}.")
    return described
