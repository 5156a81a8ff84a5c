"""LLM: the blocking interface. Load a bundle, generate, stream, chat."""

import queue
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, overload

from .batch import Batch
from .client import Model, Prompt
from .engine.generation import OutputDelta, RequestState
from .errors import ExecutionError
from .options import EngineOptions, SamplingParams
from .ort.runner_protocol import ModelRunner
from .outputs import Completion

Message = Mapping[str, Any]


class LLM:
    """A model that answers, many requests at a time; its methods may be called from several threads.

    Args:
        path: the bundle's folder.
        provider: "cpu", "cuda", or "auto" for the one that the bundle was built for.
        options: how the engine uses the machine.
        executor: computes steps in place of the bundle's graphs, for embedders.

    Raises:
        BundleError: the folder is not a usable bundle.
        ProviderError: the provider cannot start; the message says what is missing.

    Example:
        >>> with runtime.LLM("smol-int4") as llm:
        ...     print(llm.generate("The capital of France is").text)
    """

    def __init__(
        self,
        path: str | Path,
        provider: str = "auto",
        options: EngineOptions | None = None,
        *,
        executor: ModelRunner | None = None,
    ) -> None:
        self.model = Model(path, provider, options or EngineOptions(), executor)

    @property
    def deterministic(self) -> bool | None:
        """Whether an answer's every bit depends on its request alone here; None unless `self_test` was asked for."""
        found = self.model.determinism
        return None if found is None else found.complete

    @overload
    def generate(
        self, prompt: str | list[int], params: SamplingParams | None = None, *, timeout: float | None = None
    ) -> Completion: ...

    @overload
    def generate(
        self,
        prompt: list[str] | list[list[int]],
        params: SamplingParams | None = None,
        *,
        timeout: float | None = None,
    ) -> list[Completion]: ...

    def generate(
        self, prompt: Any, params: SamplingParams | None = None, *, timeout: float | None = None
    ) -> Completion | list[Completion]:
        """Answer one prompt, or a list of prompts together.

        Args:
            prompt: a text or a list of token ids, or a list of either.
            params: how to sample; None is the model's defaults.
            timeout: seconds after which an answer ends with finish_reason "timeout".

        Raises:
            RequestError: a request is refused; then none of the list is run.
            ExecutionError: the only prompt failed. In a list, the completion's `error` says so.
        """
        if _is_one(prompt):
            return _raise_error(self._run([prompt], params, timeout)[0])
        return self._run(prompt, params, timeout)

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, *, timeout: float | None = None
    ) -> Iterator[OutputDelta]:
        """Answer one prompt piece by piece; the last delta has a finish_reason. Closing the iterator cancels.

        Raises:
            RequestError: the request is refused; raised by this call, not by the iterator.
            ExecutionError: from the iterator, when the request failed.
        """
        return self._stream(prompt, params, timeout, special_tokens=True)

    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        timeout: float | None = None,
        **template: Any,
    ) -> Completion:
        """Answer the last of `messages`, each `{"role": …, "content": …}`; `template` goes to the chat template.

        Raises:
            ChatTemplateError: the bundle has no template, or it refuses these messages.
        """
        prompt = self.model.render(messages, **template)
        return _raise_error(self._run([prompt], params, timeout, special_tokens=False)[0])

    def stream_chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        timeout: float | None = None,
        **template: Any,
    ) -> Iterator[OutputDelta]:
        """As `chat`, piece by piece."""
        return self._stream(self.model.render(messages, **template), params, timeout, special_tokens=False)

    def close(self) -> None:
        """Cancel what still runs, and release threads and memory."""
        self.model.close()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(
        self,
        prompts: Iterable[Prompt],
        params: SamplingParams | None,
        timeout: float | None,
        special_tokens: bool = True,
    ) -> list[Completion]:
        requests = [self.model.request(p, params, timeout=timeout, special_tokens=special_tokens) for p in prompts]
        return Batch(self.model).run(requests)

    def _stream(
        self, prompt: Prompt, params: SamplingParams | None, timeout: float | None, special_tokens: bool
    ) -> Iterator[OutputDelta]:
        request = self.model.request(prompt, params, timeout=timeout, special_tokens=special_tokens)
        inbox: queue.SimpleQueue[OutputDelta] = queue.SimpleQueue()
        answers = self.model.answers(request, lambda _, delta: inbox.put(delta), streamed=True)
        self.model.engine.submit(answers)
        return self._deltas(answers, inbox)

    def _deltas(self, answers: list[RequestState], inbox: "queue.SimpleQueue[OutputDelta]") -> Iterator[OutputDelta]:
        unfinished = len(answers)
        try:
            while unfinished:
                delta = inbox.get()
                unfinished -= delta.finish_reason is not None
                if delta.finish_reason == "error":
                    raise answers[delta.index].error or ExecutionError("The request failed.")
                yield delta
        finally:
            for answer in answers:
                self.model.engine.cancel(answer)


def _is_one(prompt: Any) -> bool:
    return isinstance(prompt, str) or (bool(prompt) and not isinstance(prompt[0], str | Sequence))


def _raise_error(completion: Completion) -> Completion:
    if completion.error is not None:
        raise completion.error
    return completion
