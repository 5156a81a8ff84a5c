"""LLM: the blocking interface. Load a bundle, generate, stream, chat, score."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, overload

from .loading import Opening
from .options import EngineOptions, SamplingParams

if TYPE_CHECKING:  # what is imported while weights are loaded: see LLM.__init__
    from .client import Prompt, Request
    from .engine.engine import EngineStats
    from .engine.handle import RequestHandle
    from .ort.runner_protocol import ModelRunner
    from .outputs import Completion, Score

Message = Mapping[str, Any]
Messages = Sequence[Message]
# A score needs one step, whose logits are not sampled from.
SCORING = SamplingParams(max_tokens=0, prompt_logprobs=0)


class LLM:
    """A model that answers, many requests at a time; its methods may be called from several threads.

    Args:
        path: the bundle's folder.
        provider: "cpu", "cuda", or "auto" for the one that the bundle was built for.
        options: how the engine uses the machine.
        executor: computes steps in place of the bundle's graphs, for embedders.
        chat_template: a file with a template in place of the bundle's own.

    Raises:
        BundleError: the folder is not a usable bundle.
        ProviderError: the provider cannot start; the message says what is missing.

    Example:
        >>> with runtime.LLM("smol-int4") as llm:
        ...     print(llm.generate("The capital of France is", max_tokens=8).text)
    """

    def __init__(
        self,
        path: str | Path,
        provider: str = "auto",
        options: EngineOptions | None = None,
        *,
        executor: ModelRunner | None = None,
        chat_template: str | Path | None = None,
    ) -> None:
        options = options or EngineOptions()
        opening = Opening(path, provider, options) if executor is None else None

        from .client import Model  # while the weights are loaded

        template = None if chat_template is None else Path(chat_template)
        self.model = Model(path, provider, options, executor, chat_template=template, opening=opening)

    def __repr__(self) -> str:
        return f"LLM({self.model.describe()})"

    @property
    def deterministic(self) -> bool | None:
        """Whether an answer's every bit depends on its request alone here; None unless `self_test` was asked for."""
        found = self.model.determinism
        return None if found is None else found.complete

    @overload
    def generate(
        self,
        prompt: str | list[int],
        params: SamplingParams | None = None,
        *,
        timeout: float | None = None,
        progress: bool = False,
        **changes: Any,
    ) -> Completion: ...

    @overload
    def generate(
        self,
        prompt: list[str] | list[list[int]],
        params: SamplingParams | None = None,
        *,
        timeout: float | None = None,
        progress: bool = False,
        **changes: Any,
    ) -> list[Completion]: ...

    def generate(
        self,
        prompt: Any,
        params: SamplingParams | None = None,
        *,
        timeout: float | None = None,
        progress: bool = False,
        **changes: Any,
    ) -> Completion | list[Completion]:
        """Answer one prompt, or a list of prompts together.

        Args:
            prompt: a text or a list of token ids, or a list of either.
            params: how to sample; None is the model's defaults.
            timeout: seconds after which an answer ends with finish_reason "timeout".
            progress: show a bar on stderr.
            changes: sampling parameters that replace those of `params`, as in `max_tokens=100`.

        Raises:
            RequestError: a request is refused; then none of the list is run.
            OptionError: a keyword is no sampling parameter.
            ExecutionError: the only prompt failed. In a list, the completion's `error` says so.
        """
        from .outputs import raise_error

        params = (params or SamplingParams()).with_changes(changes)
        prompts = [prompt] if is_one_prompt(prompt) else prompt
        answers = self._run([self.model.request(one, params, timeout=timeout) for one in prompts], progress)
        return raise_error(answers[0]) if is_one_prompt(prompt) else answers

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, *, timeout: float | None = None, **changes: Any
    ) -> RequestHandle:
        """Answer one prompt piece by piece; the last delta has a finish_reason. Closing or dropping the handle cancels.

        Raises:
            RequestError: the request is refused; raised by this call, not by the iterator.
            ExecutionError: from the iterator, when the request failed.
        """
        params = (params or SamplingParams()).with_changes(changes)
        return self.model.submit(self.model.request(prompt, params, timeout=timeout), streamed=True)

    @overload
    def chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        timeout: float | None = None,
        progress: bool = False,
        **extra: Any,
    ) -> Completion: ...

    @overload
    def chat(
        self,
        messages: Sequence[Messages],
        params: SamplingParams | None = None,
        *,
        timeout: float | None = None,
        progress: bool = False,
        **extra: Any,
    ) -> list[Completion]: ...

    def chat(
        self,
        messages: Any,
        params: SamplingParams | None = None,
        *,
        timeout: float | None = None,
        progress: bool = False,
        **extra: Any,
    ) -> Completion | list[Completion]:
        """Answer the last of `messages`, each `{"role": …, "content": …}`, or a list of such conversations together.

        Args:
            messages: a conversation, or a list of conversations.
            params: how to sample; None is the model's defaults.
            timeout: seconds after which an answer ends with finish_reason "timeout".
            progress: show a bar on stderr.
            extra: sampling parameters that replace those of `params`; fields of `ChatOptions`, such as `tools`, which
                takes Python functions and schemas; variables that the chat template reads.

        Raises:
            ChatTemplateError: the bundle has no template, or it refuses these messages.
            OptionError: a keyword is neither a sampling parameter nor read by the template.
        """
        from .outputs import raise_error

        one = is_one_conversation(messages)
        conversations = [messages] if one else messages
        requests = [self.model.chat_request(each, params, timeout=timeout, **extra) for each in conversations]
        answers = self._run(requests, progress)
        return raise_error(answers[0]) if one else answers

    def stream_chat(
        self, messages: Messages, params: SamplingParams | None = None, *, timeout: float | None = None, **extra: Any
    ) -> RequestHandle:
        """As `chat`, piece by piece."""
        return self.model.submit(self.model.chat_request(messages, params, timeout=timeout, **extra), streamed=True)

    def tokenize(self, text: str, *, special_tokens: bool = True) -> list[int]:
        """The ids of a text, as `generate` sees it; without `special_tokens`, as it stands."""
        return self.model.tokenizer.encode(text, add_special_tokens=special_tokens)

    @overload
    def score(self, text: str | list[int]) -> Score: ...

    @overload
    def score(self, text: list[str] | list[list[int]]) -> list[Score]: ...

    def score(self, text: Any) -> Score | list[Score]:
        """Log-probabilities of each token of a text given those before it, and the perplexity; or of each of a list.

        Raises:
            RequestError: a text is empty or longer than the context.
            ExecutionError: a step failed.
        """
        from .outputs import raise_error, score_of

        one = is_one_prompt(text)
        requests = [self.model.request(each, SCORING) for each in ([text] if one else text)]
        done = zip(requests, self._run(requests), strict=True)
        scores = [score_of(request.ids, raise_error(completion)) for request, completion in done]
        return scores[0] if one else scores

    def stats(self) -> EngineStats:
        """What the engine does now, and what it did since it started."""
        return self.model.engine.stats()

    def close(self) -> None:
        """Cancel what still runs, and release threads and memory."""
        self.model.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, requests: Sequence[Request], progress: bool = False) -> list[Completion]:
        from .batch import Batch

        found: dict[int, Completion] = {}
        with answered(len(requests), shown=progress) as advance:
            for place, completion in Batch(self.model).stream(requests):
                found[place] = completion
                advance()
        return [found[place] for place in range(len(requests))]


def is_one_prompt(prompt: Any) -> bool:
    """Whether it is a text or a list of ids, and not a list of such."""
    return isinstance(prompt, str) or (bool(prompt) and not isinstance(prompt[0], str | Sequence))


def is_one_conversation(messages: Any) -> bool:
    """Whether it is a list of messages, and not a list of such lists."""
    return not (
        isinstance(messages, Sequence)
        and bool(messages)
        and isinstance(messages[0], Sequence)
        and not isinstance(messages[0], str | bytes)
    )


@contextmanager
def answered(total: int, *, shown: bool) -> Iterator[Callable[[], None]]:
    """A bar on stderr while the context lasts, if it is shown; gives the function to call after each answer."""
    if not shown:
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task("answering", total=total)
        yield lambda: bar.advance(task)
