"""AsyncLLM: the same engine for asyncio; cancelling a task cancels its request."""

from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, overload

from .client import Model, Prompt, Request
from .engine.engine import EngineStats
from .engine.generation import OutputDelta
from .engine.handle import RequestHandle
from .engine.scheduling.waiting import Reservation
from .errors import OptionError
from .llm import SCORING, Messages, answered, is_one_conversation, is_one_prompt
from .options import MAX_CHOICES, EngineOptions, SamplingParams
from .ort.runner_protocol import ModelRunner
from .outputs import Completion, Score, combine, raise_error, score_of

if TYPE_CHECKING:
    import asyncio


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
        lora: Mapping[str, str | Path] | None = None,
    ) -> None:
        template = None if chat_template is None else Path(chat_template)
        self.model = Model(path, provider, options or EngineOptions(), executor, chat_template=template, lora=lora)

    def __repr__(self) -> str:
        return f"AsyncLLM({self.model.describe()})"

    @overload
    async def generate(
        self,
        prompt: str | list[int],
        params: SamplingParams | None = None,
        *,
        timeout: float | None = None,
        progress: bool = False,
        **changes: Any,
    ) -> Completion: ...

    @overload
    async def generate(
        self,
        prompt: list[str] | list[list[int]],
        params: SamplingParams | None = None,
        *,
        timeout: float | None = None,
        progress: bool = False,
        **changes: Any,
    ) -> list[Completion]: ...

    async def generate(
        self,
        prompt: Any,
        params: SamplingParams | None = None,
        *,
        timeout: float | None = None,  # a property of the request, checked by the engine
        progress: bool = False,
        **changes: Any,
    ) -> Completion | list[Completion]:
        """Answer one prompt, or a list of prompts together; see LLM.generate.

        Raises:
            RequestError: a request is refused; then none of the list is run.
            ExecutionError: the only prompt failed. In a list, the completion's `error` says so.
        """
        import asyncio

        params = (params or SamplingParams()).with_changes(changes)
        one = is_one_prompt(prompt)
        prompts = [prompt] if one else prompt

        def make() -> list[Request]:
            return [self.model.request(each, params, timeout=timeout) for each in prompts]

        answers = await self._complete(await asyncio.to_thread(make), progress)
        return raise_error(answers[0]) if one else answers

    @overload
    async def chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        timeout: float | None = None,
        progress: bool = False,
        **extra: Any,
    ) -> Completion: ...

    @overload
    async def chat(
        self,
        messages: Sequence[Messages],
        params: SamplingParams | None = None,
        *,
        timeout: float | None = None,
        progress: bool = False,
        **extra: Any,
    ) -> list[Completion]: ...

    async def chat(
        self,
        messages: Any,
        params: SamplingParams | None = None,
        *,
        timeout: float | None = None,  # a property of the request, checked by the engine
        progress: bool = False,
        **extra: Any,
    ) -> Completion | list[Completion]:
        """Answer a conversation, or a list of conversations together; see LLM.chat."""
        import asyncio

        one = is_one_conversation(messages)
        conversations = [messages] if one else messages

        def make() -> list[Request]:
            return [self.model.chat_request(each, params, timeout=timeout, **extra) for each in conversations]

        answers = await self._complete(await asyncio.to_thread(make), progress)
        return raise_error(answers[0]) if one else answers

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, *, timeout: float | None = None, **changes: Any
    ) -> "PendingStream":
        """Answer one prompt piece by piece. Closing or dropping the stream cancels, and so does cancelling its task.

        The call submits: the prompt is prepared in a thread at once. `await` the stream for its handle, as a web
        handler does before it answers, or read it with `async for`.

        Raises:
            OptionError: a keyword is no sampling parameter.
            QueueFullError, EngineClosedError: nothing new is taken now; raised by this call.
            RequestError: the prompt is refused; raised by `await`, or with the first piece.
        """
        changed = (params or SamplingParams()).with_changes(changes)
        return self._stream(changed.n, lambda: self.model.request(prompt, changed, timeout=timeout))

    def stream_chat(
        self, messages: Messages, params: SamplingParams | None = None, *, timeout: float | None = None, **extra: Any
    ) -> "PendingStream":
        """As `chat`, piece by piece; see `stream`."""
        n = extra.get("n", (params or SamplingParams()).n)
        answers = n if isinstance(n, int) and 0 < n <= MAX_CHOICES else 1  # else refused when it is prepared
        return self._stream(answers, lambda: self.model.chat_request(messages, params, timeout=timeout, **extra))

    async def tokenize(self, text: str, *, special_tokens: bool = True) -> list[int]:
        """The ids of a text; see LLM.tokenize."""
        import asyncio

        return await asyncio.to_thread(self.model.tokenizer.encode, text, add_special_tokens=special_tokens)

    @overload
    async def score(self, text: str | list[int]) -> Score: ...

    @overload
    async def score(self, text: list[str] | list[list[int]]) -> list[Score]: ...

    async def score(self, text: Any) -> Score | list[Score]:
        """Log-probabilities and perplexity of a text, or of each of a list; see LLM.score."""
        import asyncio

        one = is_one_prompt(text)
        texts = [text] if one else text
        requests = await asyncio.to_thread(lambda: [self.model.request(each, SCORING) for each in texts])
        done = zip(requests, await self._complete(requests), strict=True)
        scores = [score_of(request.ids, raise_error(completion)) for request, completion in done]
        return scores[0] if one else scores

    def stats(self) -> EngineStats:
        """What the engine does now, and what it did since it started."""
        return self.model.engine.stats()

    async def close(self) -> None:
        """Cancel what still runs, and release threads and memory."""
        import asyncio

        await asyncio.to_thread(self.model.close)

    async def __aenter__(self) -> "AsyncLLM":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _complete(self, requests: Sequence[Request], progress: bool = False) -> list[Completion]:
        """The completions of requests, as many at a time as keep the engine busy."""
        import asyncio

        room = asyncio.Semaphore(2 * self.model.options.max_concurrency)
        tasks = [asyncio.create_task(self._answer(request, room)) for request in requests]
        with answered(len(tasks), shown=progress) as advance:
            for task in tasks:
                task.add_done_callback(lambda _: advance())
            try:
                return await asyncio.gather(*tasks)
            finally:  # one was refused, or this task was cancelled: nobody waits for the others any more
                for task in tasks:
                    task.cancel()

    async def _answer(self, request: Request, room: "asyncio.Semaphore") -> Completion:
        import asyncio

        async with room, await asyncio.to_thread(self.model.submit, request) as handle:
            return combine(handle.answers, await handle.deltas_async())

    def _stream(self, answers: int, make: Callable[[], Request]) -> "PendingStream":
        reservation = self.model.engine.reserve(answers)
        submit = partial(self.model.submit, streamed=True, reservation=reservation)
        return PendingStream(lambda: submit(make()), reservation)


class PendingStream:
    """A stream on its way to the engine: `await` it for its handle, or read it with `async for`. For one reader.

    Args:
        submit: prepares and submits the request; runs in a thread, at once.
        reservation: its room in the queue, given back if the request is not submitted.
    """

    def __init__(self, submit: Callable[[], RequestHandle], reservation: Reservation) -> None:
        import asyncio

        def ended(future: "asyncio.Future[RequestHandle]") -> None:
            reservation.give_up()
            if not future.cancelled():
                future.exception()  # seen: a stream that nobody reads complains to nobody

        try:
            self._handle = asyncio.get_running_loop().run_in_executor(None, submit)
        except RuntimeError as error:
            reservation.give_up()
            raise OptionError("AsyncLLM streams inside a running event loop; LLM.stream needs none.") from error
        self._handle.add_done_callback(ended)

    def __await__(self) -> Generator[Any, None, RequestHandle]:
        return self._handle.__await__()

    def __aiter__(self) -> AsyncIterator[OutputDelta]:
        return self

    async def __anext__(self) -> OutputDelta:
        if self._handle.cancelled():
            raise StopAsyncIteration
        return await anext(await self._handle)

    async def __aenter__(self) -> RequestHandle:
        return await self._handle

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Cancel the request, wherever it is."""
        if not self._handle.cancel() and not self._handle.cancelled() and self._handle.exception() is None:
            self._handle.result().close()
