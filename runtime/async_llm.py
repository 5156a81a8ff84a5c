"""AsyncLLM: the same engine for asyncio; cancelling a task cancels its request."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Any

from .client import Model, Prompt, Request
from .engine.generation import OutputDelta, RequestState
from .errors import ExecutionError
from .llm import Message
from .options import EngineOptions, SamplingParams
from .ort.runner_protocol import ModelRunner
from .outputs import Completion, combine


class AsyncLLM:
    """A model that answers, many requests at a time, inside an event loop. Arguments as for LLM.

    Example:
        >>> async with runtime.AsyncLLM("smol-int4") as llm:
        ...     async for delta in llm.stream("The capital of France is"):
        ...         print(delta.text, end="")
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

    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        timeout: float | None = None,
    ) -> Completion:
        """Answer one prompt. Many at once are many tasks.

        Raises:
            RequestError: the request is refused.
            ExecutionError: it failed.
        """
        return await self._complete(self.model.request(prompt, params, timeout=timeout))

    async def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        timeout: float | None = None,  # a property of the request, checked by the engine
        **template: Any,
    ) -> Completion:
        """Answer the last of `messages`; `template` goes to the chat template."""
        prompt = self.model.render(messages, **template)
        return await self._complete(self.model.request(prompt, params, timeout=timeout, special_tokens=False))

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, *, timeout: float | None = None
    ) -> AsyncIterator[OutputDelta]:
        """Answer one prompt piece by piece. Leaving the iterator, or cancelling its task, cancels the request."""
        return self._deltas(self.model.request(prompt, params, timeout=timeout), [], streamed=True)

    def stream_chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        timeout: float | None = None,
        **template: Any,
    ) -> AsyncIterator[OutputDelta]:
        """As `chat`, piece by piece."""
        prompt = self.model.render(messages, **template)
        request = self.model.request(prompt, params, timeout=timeout, special_tokens=False)
        return self._deltas(request, [], streamed=True)

    async def close(self) -> None:
        """Cancel what still runs, and release threads and memory."""
        await asyncio.to_thread(self.model.close)

    async def __aenter__(self) -> "AsyncLLM":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _complete(self, request: Request) -> Completion:
        answers: list[RequestState] = []
        async with aclosing(self._deltas(request, answers)) as deltas:
            return combine(answers, [delta async for delta in deltas])

    async def _deltas(
        self, request: Request, answers: list[RequestState], *, streamed: bool = False
    ) -> AsyncGenerator[OutputDelta, None]:
        loop = asyncio.get_running_loop()
        inbox: asyncio.Queue[OutputDelta] = asyncio.Queue()

        def listen(_: RequestState, delta: OutputDelta) -> None:
            loop.call_soon_threadsafe(inbox.put_nowait, delta)

        answers += self.model.answers(request, listen, streamed=streamed)
        self.model.engine.submit(answers)
        unfinished = len(answers)
        try:
            while unfinished:
                delta = await inbox.get()
                unfinished -= delta.finish_reason is not None
                if delta.finish_reason == "error":
                    raise answers[delta.index].error or ExecutionError("The request failed.")
                yield delta
        finally:
            for answer in answers:
                self.model.engine.cancel(answer)
