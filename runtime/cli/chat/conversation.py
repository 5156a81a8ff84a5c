"""A chat with its history."""

import json
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import OptionError
from ...outputs import answer_message, call_message

if TYPE_CHECKING:
    from ...chat.formats.format import ToolCall
    from ...engine.generation import OutputDelta
    from ...llm import LLM
    from ...options import SamplingParams

Message = dict[str, Any]
_TEXTS = ("reasoning_content", "tool_call_id", "name")  # of messages, beside role and content


class Conversation:
    """Messages so far, and the model that answers them.

    What the user saw is what the model is told later: an answer that was stopped stays in the history as far as it
    came, and a question that was refused does not.

    Args:
        llm: answers.
        params: how each answer is sampled.
        system: the system message, if any.
    """

    def __init__(self, llm: "LLM", params: "SamplingParams", system: str | None = None) -> None:
        self.llm = llm
        self.params = params
        self.messages: list[Message] = []
        self.tools: list[dict[str, Any]] = []
        self.set_system(system)

    @property
    def system(self) -> str | None:
        """The system message, if any."""
        first: Message = self.messages[0] if self.messages else {"role": "none"}
        return first["content"] if first["role"] == "system" else None

    def set_system(self, text: str | None) -> None:
        """Begin anew with another system message, or with none."""
        self.messages = [{"role": "system", "content": text}] if text else []

    def set_param(self, name: str, value: Any) -> None:
        """Change one sampling parameter for the answers to come.

        Raises:
            OptionError: no such parameter, or a value it does not take.
        """
        names = [field.name for field in fields(self.params)]
        if name not in names:
            raise OptionError(f"{name!r} is no sampling parameter. There are: {', '.join(names)}.")
        self.params = replace(self.params, **{name: value})

    def reset(self) -> None:
        """Forget everything but the system message."""
        self.set_system(self.system)

    def undo(self) -> str | None:
        """Forget the last question and its answer; returns the question, None if there is none."""
        asked = [place for place, message in enumerate(self.messages) if message["role"] == "user"]
        if not asked:
            return None
        question: str = self.messages[asked[-1]]["content"]
        del self.messages[asked[-1] :]
        return question

    def save(self, path: Path) -> None:
        """Write the messages to a file, as JSON that `load` and other programs read."""
        kept = {"messages": self.messages, **({"tools": self.tools} if self.tools else {})}
        path.write_text(json.dumps(kept, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")

    def load(self, path: Path) -> None:
        """Go on with the messages of a file.

        Raises:
            OptionError: the file holds no conversation; the history is as before.
        """
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            messages, tools = [_message(one) for one in kept["messages"]], _tools(kept.get("tools", []))
        except (ValueError, KeyError, TypeError) as error:
            raise OptionError(f"{path}: not a conversation that /save wrote ({error!r}).") from error
        self.messages, self.tools = messages, tools

    def load_tools(self, path: Path) -> None:
        """Let the model call the functions of a file: a list as OpenAI's API takes it in `tools`.

        Raises:
            OptionError: the file holds no such list; the tools are as before.
        """
        try:
            self.tools = _tools(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, KeyError, TypeError) as error:
            raise OptionError(
                f"{path}: no list of tools ({error!r}). It looks like "
                '[{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}].'
            ) from error

    @property
    def waiting_calls(self) -> list[Message]:
        """Calls of the last answer whose results are not known yet."""
        answers = [place for place, message in enumerate(self.messages) if message["role"] == "assistant"]
        if not answers or any(message["role"] != "tool" for message in self.messages[answers[-1] + 1 :]):
            return []
        known = {message["tool_call_id"] for message in self.messages[answers[-1] + 1 :]}
        calls: list[Message] = self.messages[answers[-1]].get("tool_calls", [])
        return [call for call in calls if call["id"] not in known]

    def add_result(self, text: str) -> None:
        """The result of the first call that waits for one."""
        call = self.waiting_calls[0]
        result = {"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"], "content": text}
        self.messages = [*self.messages, result]

    def ask(self, text: str) -> Iterator["OutputDelta"]:
        """Answer one more message, piece by piece. Closing the iterator stops the answer.

        Raises:
            RequestError: refused, by this call; the history is as before.
            ExecutionError: failed, from the iterator; the history is as before if nothing had come.
        """
        return self._answer([*self.messages, {"role": "user", "content": text}])

    def go_on(self) -> Iterator["OutputDelta"]:
        """Answer the results of calls, as `ask` does a message."""
        return self._answer(self.messages)

    def _answer(self, messages: list[Message]) -> Iterator["OutputDelta"]:
        tools: dict[str, Any] = {"tools": self.tools} if self.tools else {}
        return self._kept(messages, self.llm.stream_chat(messages, self.params, **tools))

    def _kept(self, messages: list[Message], deltas: Iterator["OutputDelta"]) -> Iterator["OutputDelta"]:
        text = thoughts = ""
        calls: tuple[ToolCall, ...] = ()
        try:
            for delta in deltas:
                text, thoughts, calls = text + delta.text, thoughts + delta.reasoning, calls + delta.tool_calls
                yield delta
        finally:
            deltas.close()  # type: ignore[attr-defined]  # closing it cancels the request
            if text or thoughts or calls:
                self.messages = [*messages, answer_message(text, thoughts, calls)]


def _message(one: Message) -> Message:
    """A message of a file, with nothing that is not one's.

    Raises:
        KeyError, TypeError: it is none.
    """
    message: Message = {"role": str(one["role"]), "content": str(one["content"])}
    message |= {name: str(one[name]) for name in _TEXTS if name in one}
    if "tool_calls" in one:
        calls = [(str(call["id"]), call["function"]) for call in one["tool_calls"]]
        message["tool_calls"] = [
            call_message(name, str(function["name"]), str(function["arguments"])) for name, function in calls
        ]
    return message


def _tools(found: Any) -> list[dict[str, Any]]:
    if not isinstance(found, list):
        raise TypeError("it is no list")
    for tool in found:
        str(tool["function"]["name"])
    return found
