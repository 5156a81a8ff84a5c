"""AsyncLLM: the same engine for asyncio; cancelling a task cancels its request."""

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, overload

from .client import Model, Prompt, Request
from .engine.engine import EngineStats
from .engine.generation import OutputDelta
from .engine.handle import RequestHandle
from .llm import Messages, is_one_conversation, is_one_prompt
from .options import EngineOptions, SamplingParams
from .ort.runner_protocol import ModelRunner
from .outputs import Completion, combine, raise_error


class AsyncLLM:
    """A model that answers, many requests at a time, inside an event loop. Arguments as for LLM.

    Prompts are rendered, tokenized and compiled in threads, so that the event loop never waits for them.

    Example:
        >>> async with runtime.AsyncLLM("smol-int4") as llm:
        ...     async for delta in await llm.stream("The capital of France is"):
        ...         print(delta.text, end="")
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
        template = None if chat_template is None else Path(chat_template)
        self.model = Model(path, provider, options or EngineOptions(), executor, chat_template=template)

    def __repr__(self) -> str:
        return f"AsyncLLM({self.model.describe()})"

    @overload
    async def generate(
        self,
        prompt: str | list[int],
        params: SamplingParams | None = None,
        *,
        timeout: float | None = None,
        **changes: Any,
    ) -> Completion: ...

    @overload
    async def generate(
        self,
        prompt: list[str] | list[list[int]],
        params: SamplingParams | None = None,
        *,
        timeout: float | None = None,
        **changes: Any,
    ) -> list[Completion]: ...

    async def generate(
        self,
        prompt: Any,
        params: SamplingParams | None = None,
        *,
        timeout: float | None = None,  # a property of the request, checked by the engine
        **changes: Any,
    ) -> Completion | list[Completion]:
        """Answer one prompt, or a list of prompts together; see LLM.generate.

        Raises:
            RequestError: a request is refused; then none of the list is run.
            ExecutionError: the only prompt failed. In a list, the completion's `error` says so.
        """
        params = (params or SamplingParams()).with_changes(changes)
        one = is_one_prompt(prompt)
        prompts = [prompt] if one else prompt
        make = [lambda each=each: self.model.request(each, params, timeout=timeout) for each in prompts]
        answers = await self._complete(make)
        return raise_error(answers[0]) if one else answers

    @overload
    async def chat(
        self, messages: Messages, params: SamplingParams | None = None, *, timeout: float | None = None, **extra: Any
    ) -> Completion: ...

    @overload
    async def chat(
        self,
        messages: Sequence[Messages],
        params: SamplingParams | None = None,
        *,
        timeout: float | None = None,
        **extra: Any,
    ) -> list[Completion]: ...

    async def chat(
        self,
        messages: Any,
        params: SamplingParams | None = None,
        *,
        timeout: float | None = None,  # a property of the request, checked by the engine
        **extra: Any,
    ) -> Completion | list[Completion]:
        """Answer a conversation, or a list of conversations together; see LLM.chat."""
        one = is_one_conversation(messages)
        conversations = [messages] if one else messages
        make = [
            lambda each=each: self.model.chat_request(each, params, timeout=timeout, **extra) for each in conversations
        ]
        answers = await self._complete(make)
        return raise_error(answers[0]) if one else answers

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, *, timeout: float | None = None, **changes: Any
    ) -> "PendingStream":
        """Answer one prompt piece by piece. Leaving the iterator, or cancelling its task, cancels the request.

        `await` it to have a refusal raised before anything is read, as a web handler wants it; `async for` alone
        submits with the first piece.
        """
        changed = (params or SamplingParams()).with_changes(changes)
        return self._stream(lambda: self.model.request(prompt, changed, timeout=timeout))

    def stream_chat(
        self, messages: Messages, params: SamplingParams | None = None, *, timeout: float | None = None, **extra: Any
    ) -> "PendingStream":
        """As `chat`, piece by piece; see `stream`."""
        return self._stream(lambda: self.model.chat_request(messages, params, timeout=timeout, **extra))

    def stats(self) -> EngineStats:
        """What the engine does now, and what it did since it started."""
        return self.model.engine.stats()

    async def close(self) -> None:
        """Cancel what still runs, and release threads and memory."""
        await asyncio.to_thread(self.model.close)

    async def __aenter__(self) -> "AsyncLLM":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _complete(self, make: Sequence[Callable[[], Request]]) -> list[Completion]:
        """The completions of requests that are made in a thread, as many at a time as keep the engine busy."""
        requests = await asyncio.to_thread(lambda: [one() for one in make])
        room = asyncio.Semaphore(2 * self.model.options.max_concurrency)
        tasks = [asyncio.create_task(self._answer(request, room)) for request in requests]
        try:
            return await asyncio.gather(*tasks)
        finally:  # one was refused, or this task was cancelled: nobody waits for the others any more
            for task in tasks:
                task.cancel()

    async def _answer(self, request: Request, room: asyncio.Semaphore) -> Completion:
        async with room, self.model.submit(request) as handle:
            return combine(handle.answers, await handle.deltas_async())

    def _stream(self, make: Callable[[], Request]) -> "PendingStream":
        return PendingStream(lambda: self.model.submit(make(), streamed=True))


class PendingStream:
    """A stream that is not submitted yet: `await` it for its handle, or read it with `async for`."""

    def __init__(self, submit: Callable[[], RequestHandle]) -> None:
        self._submit = submit
        self._handle: RequestHandle | None = None

    def __await__(self) -> Generator[Any, None, RequestHandle]:
        return self._submitted().__await__()

    def __aiter__(self) -> AsyncIterator[OutputDelta]:
        return self

    async def __anext__(self) -> OutputDelta:
        return await anext(await self._submitted())

    async def aclose(self) -> None:
        """Cancel the request, if it was submitted."""
        if self._handle is not None:
            self._handle.close()

    async def _submitted(self) -> RequestHandle:
        if self._handle is None:
            self._handle = await asyncio.to_thread(self._submit)
        return self._handle
