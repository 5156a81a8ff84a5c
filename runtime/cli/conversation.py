"""A chat with its history."""

import json
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import OptionError

if TYPE_CHECKING:
    from ..engine.generation import OutputDelta
    from ..llm import LLM
    from ..options import SamplingParams

Message = dict[str, str]


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
        self.set_system(system)

    @property
    def system(self) -> str | None:
        """The system message, if any."""
        return self.messages[0]["content"] if self.messages and self.messages[0]["role"] == "system" else None

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
        question = self.messages[asked[-1]]["content"]
        del self.messages[asked[-1] :]
        return question

    def save(self, path: Path) -> None:
        """Write the messages to a file, as JSON that `load` and other programs read."""
        path.write_text(json.dumps({"messages": self.messages}, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")

    def load(self, path: Path) -> None:
        """Go on with the messages of a file.

        Raises:
            OptionError: the file holds no conversation; the history is as before.
        """
        try:
            messages = json.loads(path.read_text(encoding="utf-8"))["messages"]
            checked = [{"role": str(one["role"]), "content": str(one["content"])} for one in messages]
        except (ValueError, KeyError, TypeError) as error:
            raise OptionError(f"{path}: not a conversation that /save wrote ({error!r}).") from error
        self.messages = checked

    def ask(self, text: str) -> Iterator["OutputDelta"]:
        """Answer one more message, piece by piece. Closing the iterator stops the answer.

        Raises:
            RequestError: refused, by this call; the history is as before.
            ExecutionError: failed, from the iterator; the history is as before if nothing had come.
        """
        messages = [*self.messages, {"role": "user", "content": text}]
        return self._answer(messages, self.llm.stream_chat(messages, self.params, reasoning_format="none"))

    def _answer(self, messages: list[Message], deltas: Iterator["OutputDelta"]) -> Iterator["OutputDelta"]:
        answer = ""
        try:
            for delta in deltas:
                answer += delta.text
                yield delta
        finally:
            deltas.close()  # type: ignore[attr-defined]  # closing it cancels the request
            if answer:
                self.messages = [*messages, {"role": "assistant", "content": answer}]
