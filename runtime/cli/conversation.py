"""A chat with its history."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..engine.generation import OutputDelta
    from ..llm import LLM
    from ..options import SamplingParams


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
        self._llm = llm
        self._params = params
        self._start = [] if system is None else [{"role": "system", "content": system}]
        self.messages = list(self._start)

    def reset(self) -> None:
        """Forget everything but the system message."""
        self.messages = list(self._start)

    def ask(self, text: str) -> Iterator["OutputDelta"]:
        """Answer one more message, piece by piece. Closing the iterator stops the answer.

        Raises:
            RequestError: refused, by this call; the history is as before.
            ExecutionError: failed, from the iterator; the history is as before if nothing had come.
        """
        messages = [*self.messages, {"role": "user", "content": text}]
        return self._answer(messages, self._llm.stream_chat(messages, self._params))

    def _answer(self, messages: list[dict[str, str]], deltas: Iterator["OutputDelta"]) -> Iterator["OutputDelta"]:
        answer = ""
        try:
            for delta in deltas:
                answer += delta.text
                yield delta
        finally:
            deltas.close()  # type: ignore[attr-defined]  # a generator: closing it cancels the request
            if answer:
                self.messages = [*messages, {"role": "assistant", "content": answer}]
