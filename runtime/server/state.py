"""What all routes share: the models, the limits, the figures, and the threads in which requests are prepared."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from ..bundle.sequence_task import Kind
from ..chat.answer_plan import AnswerPlanner
from ..chat.template import ChatTemplate
from ..client import Model
from ..encoder.model import Encoder
from ..errors import ChatTemplateError
from .encoders.served import ROUTES, ServedEncoder
from .health import Heartbeat
from .limits import RequestLimiter
from .metrics import Metrics
from .openai.errors import ApiError, Disconnected, api_error, stopping
from .openai.responses.store import ResponseStore
from .openai.token_texts import TokenTexts
from .options import ServerOptions
from .request_log import RequestLog

Result = TypeVar("Result")
_PREPARING = 2  # threads that parse, render, tokenize and compile: more would only contend for the interpreter's lock
_BODIES = 16  # how many bodies of the largest size may be inside
_GONE = 499  # in the log: nobody was left to get a status


@dataclass
class ServedModel:
    """A model under the name that clients use."""

    name: str
    model: Model
    tool_fallback: bool = False
    reasoning_format: str = "auto"
    created: int = field(default_factory=lambda: int(time.time()))

    @cached_property
    def template(self) -> ChatTemplate:
        """Its chat template; raises ChatTemplateError if it has none."""
        return self.model.chat_template

    @cached_property
    def planner(self) -> AnswerPlanner:
        """Plans its answers; raises ChatTemplateError if it has no template."""
        return AnswerPlanner(
            self.template,
            self.model.tokenizer,
            self.model.compile,
            tool_fallback=self.tool_fallback,
            keep_thoughts=self.reasoning_format == "none",
        )

    @cached_property
    def token_texts(self) -> TokenTexts:
        """Its tokens for logprobs."""
        return TokenTexts(self.model.tokenizer)

    def prepare(self) -> None:
        """Make now what the first request would make, while nobody waits."""
        self.model.prepare()
        _ = self.token_texts
        with suppress(ChatTemplateError):
            _ = self.planner

    @property
    def longest(self) -> int:
        """Most tokens of one request, prompt and answer."""
        return self.model.engine.longest

    def require_room(self, choices: int) -> None:
        """Raise ApiError 400 for more answers than may ever wait together."""
        most = self.model.options.max_queue
        if choices > most:
            raise ApiError(400, f"The request asks for {choices} answers, and {most} may wait at a time.", param="n")


class AppState:
    """The state of one server.

    Args:
        models: by the names that clients use.
        options: of the server.
        encoders: models that read whole texts, by the names that clients use.
    """

    def __init__(
        self, models: Mapping[str, Model], options: ServerOptions, encoders: Mapping[str, Encoder] | None = None
    ) -> None:
        self.encoders = {name: ServedEncoder(name, encoder) for name, encoder in (encoders or {}).items()}
        self.models = {
            name: ServedModel(name, model, options.tool_fallback, options.reasoning_format)
            for name, model in models.items()
        }
        for name, model in models.items():  # each adapter is a model of its own to clients
            for adapter in model.adapters:
                named = f"{name}:{adapter}"
                self.models[named] = ServedModel(
                    named, model.with_adapter(adapter), options.tool_fallback, options.reasoning_format
                )
        for served in self.models.values():
            served.prepare()
        self.options = options
        engines = {name: model.engine.stats for name, model in models.items()}
        engines |= {name: served.encoder.engine.stats for name, served in self.encoders.items()}
        self.metrics = Metrics(engines)
        running = sum(model.options.max_concurrency for model in models.values())
        running += sum(served.encoder.options.max_concurrency for served in self.encoders.values())
        self.admission = RequestLimiter(running + options.max_queue, _BODIES * options.max_body)
        self.heartbeats = {name: Heartbeat(look, options.stall_seconds) for name, look in engines.items()}
        self.responses = ResponseStore(options.response_store)
        self.draining = False
        self.address = ""  # where it listens, for the log
        self._threads = ThreadPoolExecutor(_PREPARING, thread_name_prefix="onnxlm-prepare")

    def find(self, name: str | None) -> ServedModel:
        """The model of that name; without a name, the only one.

        Raises:
            ApiError: 404; 400 without a name where there are several.
        """
        if name is None and len(self.models) == 1:
            return next(iter(self.models.values()))
        if name in self.encoders:
            raise _other_kind(name, ROUTES[self.encoders[name].encoder.task.kind])
        if name is None or name not in self.models:
            raise _not_found(name, self.models)
        return self.models[name]

    def find_encoder(self, name: str | None, kind: Kind) -> ServedEncoder:
        """The model of that name that gives embeddings, or scores; without a name, the only one of its kind.

        Raises:
            ApiError: 404; 400 for a model of another kind, and without a name where there are several.
        """
        fitting = {key: served for key, served in self.encoders.items() if served.encoder.task.kind == kind}
        if name is None and len(fitting) == 1:
            return next(iter(fitting.values()))
        if name in fitting:
            return fitting[name]
        if name in self.encoders:
            raise _other_kind(name, ROUTES[self.encoders[name].encoder.task.kind])
        if name in self.models:
            raise _other_kind(name, "/v1/chat/completions")
        raise _not_found(name, fitting)

    @property
    def names(self) -> list[str]:
        """Of all models."""
        return [*self.models, *self.encoders]

    def timeout(self, wanted: float | None) -> float | None:
        """Seconds that a request may take: what it asks for, at most what the operator allows."""
        limits = [seconds for seconds in (wanted, self.options.request_seconds) if seconds is not None]
        return min(limits, default=None)

    async def recorded(
        self,
        record: RequestLog,
        work: Coroutine[Any, Any, None],
        refuse: Callable[[ApiError], Awaitable[None]],
    ) -> None:
        """Do the work of one request, and write it into the log and the metrics.

        What the work raises is answered by `refuse`, unless nobody is left to read it.
        """
        try:
            await work
        except Disconnected:
            record.status, record.reason = _GONE, "disconnected"
        except Exception as error:  # noqa: BLE001  # one request's fault must not become the server's
            answer = api_error(error)
            record.status, record.reason = answer.status, answer.code or answer.kind
            record.param = answer.param and answer.param[:80]
            await refuse(answer)
        except BaseException:
            record.status, record.reason = record.status or _GONE, "cancelled"
            raise
        finally:
            record.write()
            self.metrics.answered(record.path, record.status)
            if record.status == 200:
                self.admission.took(record.total)

    async def prepare(self, function: Callable[[], Result]) -> Result:
        """Run what takes long in a thread. A caller that is cancelled still waits: the work counts until it ends."""
        future = self._threads.submit(function)
        waiting = asyncio.wrap_future(future)
        try:
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:
            if not future.cancel():
                await asyncio.wait({waiting})
                waiting.exception()  # no caller is left
            raise

    def require_open(self) -> None:
        """Raise ApiError 503 while the server drains."""
        if self.draining:
            raise stopping()

    def faults(self) -> dict[str, str]:
        """What is wrong with which model's engine."""
        looks = {name: heartbeat.observe() for name, heartbeat in self.heartbeats.items()}
        return {name: fault for name, fault in looks.items() if fault is not None}

    @property
    def lost(self) -> str | None:
        """Why a model's device computes nothing any more, or None: only a new process can use it again."""
        engines = [served.model.engine.stats for served in self.models.values()]
        found = (look().lost for look in [*engines, *(one.encoder.engine.stats for one in self.encoders.values())])
        return next((lost for lost in found if lost is not None), None)

    async def watch(self) -> None:
        """Look at the engines for as long as the server runs, so that a stall is noticed when nobody asks."""
        while True:
            self.faults()
            await asyncio.sleep(min(1.0, self.options.stall_seconds / 4))

    def close(self) -> None:
        """End the threads; the models belong to whoever made the service."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _not_found(name: str | None, models: Mapping[str, object]) -> ApiError:
    known = ", ".join(map(repr, models)) or "none of this kind"
    if name is None:
        return ApiError(400, f"model: name one of those served here: {known}.", param="model")
    words = f"There is no model {name!r:.80} here; there is {known}."
    return ApiError(404, words, code="model_not_found", param="model")


def _other_kind(name: str, routes: str) -> ApiError:
    return ApiError(400, f"The model {name!r:.80} is of another kind: ask it at {routes}.", param="model")
