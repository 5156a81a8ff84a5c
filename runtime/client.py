"""A bundle ready to answer: its tokenizer, its templates and an engine, and requests turned into answers."""

import copy
import functools
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from .bundle.bundle import open_bundle
from .bundle.sequence_task import require_generation
from .chat.options import ChatOptions
from .chat_reader import ChatReader
from .engine.draft_model import DRAFT_TOKENS, DraftModel, ModelDrafts
from .engine.engine import Engine
from .engine.generation import RequestState
from .engine.handle import Observer, Reader, RequestHandle
from .engine.scheduling.sequence import Sequence as TokenSequence
from .engine.scheduling.waiting import Reservation
from .engine.speculation import Drafts, PromptLookup
from .errors import OptionError, RequestError
from .loading import Opening, build_engine, generation_config, load_draft
from .options import EngineOptions, SamplingParams
from .ort.batch_invariance import Determinism, check_determinism
from .ort.memory import closing_on_error
from .ort.prepared.mapped_pages import trim_heap
from .ort.runner_protocol import ModelRunner
from .sampling.grammar import Grammars, StructuredOutput
from .sampling.sampler import Sampler
from .text.detokenizer import Detokenizer
from .text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from .chat.answer_plan import AnswerPlan
    from .chat.template import ChatTemplate

Prompt = str | Sequence[int]


@dataclass(frozen=True)
class Request:
    """A prompt as token ids and how to answer it, checked against the model."""

    ids: tuple[int, ...]
    params: SamplingParams
    timeout: float | None = None
    visible: frozenset[int] = frozenset()
    reader: Callable[[], Reader] | None = None  # reads the deltas of one answer of a chat


class Model:
    """What LLM and AsyncLLM share. With an embedder's executor, the bundle's own graphs are not loaded.

    Attributes:
        bundle: the opened bundle.
        tokenizer: its tokenizer.
        engine: runs the answers; started.
        adapters: names of its LoRA adapters.
        default_adapter: the one of requests that name none, or None for the model alone.
        determinism: the result of the self-test, if one was asked for.
    """

    def __init__(
        self,
        path: str | Path,
        provider: str,
        options: EngineOptions,
        executor: ModelRunner | None = None,
        *,
        chat_template: Path | None = None,
        opening: Opening | None = None,
        lora: Mapping[str, str | Path] | None = None,
    ) -> None:
        self._template_file = chat_template
        if lora and executor:
            raise OptionError("lora: adapters are inputs of the bundle's own graphs, not of another executor.")
        if executor is None and opening is None:
            opening = Opening(path, provider, options, lora)
        self.bundle = opening.bundle if opening else open_bundle(path)
        self.adapters = opening.adapters if opening else ()
        self.default_adapter: str | None = None
        require_generation(self.bundle, "generating or chatting")
        self.options = options
        manifest = self.bundle.manifest
        self._defaults = generation_config(self.bundle)
        self._vocab_size = manifest.architecture.vocab_size
        self._ids = itertools.count()
        self.determinism: Determinism | None = None
        with closing_on_error(opening or executor):
            if opening:
                opening.wait_until_begun()
            self.tokenizer = Tokenizer(self.bundle.path("tokenizer.json"), manifest.tokens.special)
            import_module(f"{__package__}.chat.answer_plan")  # for chats, while ONNX Runtime still loads
            executor = executor or cast(Opening, opening).executor()
            self._grammars = Grammars(self.tokenizer, self._vocab_size, manifest.tokens.eos)
            if options.self_test:
                self.determinism = check_determinism(executor)
            draft = load_draft(self.bundle, options, self.tokenizer)
            self._draft_model = DraftModel(draft, self._vocab_size) if draft else None
            self.engine: Engine = build_engine(executor, self.bundle, options)
        self.engine.start()
        trim_heap()  # reading a tokenizer takes tens of megabytes that are free again now

    def request(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        timeout: float | None = None,
        visible: Collection[int] = (),
        special_tokens: bool = True,
    ) -> Request:
        """A checked request.

        Args:
            prompt: a text, or token ids.
            params: how to sample; None is the model's defaults.
            timeout: seconds after which its answers end with "timeout".
            visible: special ids that are written out, such as those around tool calls.
            special_tokens: begin and end a text as the model expects; a rendered chat has that already.

        Raises:
            RequestError, PromptTooLongError: the request cannot be run as it is.
        """
        params = (params or SamplingParams()).with_model_defaults(self._defaults)
        params.check(self._vocab_size)
        if params.structured is not None:
            self._grammars.constraint(params.structured)  # refuses here what does not compile
        if params.prompt_logprobs is not None and not self.engine.core.executor.can_give_all_logits:
            raise RequestError("prompt_logprobs: this executor gives the logits of one position only.")
        params = self._with_adapter(params)
        ids = self._prompt_ids(prompt, special_tokens)
        self.engine.core.scheduler.check(len(ids), params.max_tokens)
        if timeout is not None and not timeout >= 0:
            raise RequestError(f"timeout must be a number of seconds from 0 on, got {timeout!r}.")
        return Request(tuple(ids), params, timeout, frozenset(visible))

    def submit(
        self,
        request: Request,
        *,
        streamed: bool = False,
        observer: Observer | None = None,
        reservation: Reservation | None = None,
    ) -> RequestHandle:
        """Start the `n` answers to one request; see RequestHandle.

        Raises:
            QueueFullError: too much is waiting.
            EngineClosedError: the engine has stopped.
        """
        answers = self.answers(request)
        readers = [request.reader() for _ in answers] if request.reader else []
        return RequestHandle(
            self.engine, answers, streamed=streamed, readers=readers, observer=observer, reservation=reservation
        )

    def with_adapter(self, name: str) -> "Model":
        """The same model and engine, whose requests have this adapter unless they name another."""
        other = copy.copy(self)
        other.default_adapter = name
        return other

    def _with_adapter(self, params: SamplingParams) -> SamplingParams:
        name = params.adapter or self.default_adapter
        if name is not None and name not in self.adapters:
            known = ", ".join(map(repr, self.adapters)) or "none"
            raise RequestError(f"adapter {name!r:.80} is not loaded; loaded: {known}.")
        return params if name == params.adapter else params.with_changes({"adapter": name})

    def answers(self, request: Request) -> list[RequestState]:
        """The `n` answers to one request, not yet submitted."""
        return [self._answer(request, index) for index in range(request.params.n)]

    def _answer(self, request: Request, index: int) -> RequestState:
        params, ids = request.params, list(request.ids)
        now = self.engine.core.clock()
        end = min(len(ids) + params.max_tokens, self.engine.longest)
        deadline = None if request.timeout is None else now + request.timeout
        sequence = TokenSequence(next(self._ids), ids, len(ids), end, now, deadline)
        sequence.scored = params.prompt_logprobs is not None
        sequence.adapter = 1 + self.adapters.index(params.adapter) if params.adapter else 0
        stop_ids = frozenset(params.stop_token_ids).union(() if params.ignore_eos else self.bundle.manifest.tokens.eos)
        constraint = self._grammars.constraint(params.structured) if params.structured else None
        sampler = Sampler(params, self._vocab_size, ids, stop_ids=stop_ids, index=index, constraint=constraint)
        detokenizer = Detokenizer(self.tokenizer, request.visible)
        return RequestState(sequence, sampler, detokenizer, params, stop_ids, index, self._drafts())

    def _drafts(self) -> Drafts | None:
        """What drafts tokens of one answer, if anything does."""
        if self._draft_model is not None:
            return ModelDrafts(self._draft_model, self.options.speculation or DRAFT_TOKENS)
        return PromptLookup(self.options.speculation) if self.options.speculation else None

    def chat_request(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: SamplingParams | None = None,
        *,
        timeout: float | None = None,
        **extra: Any,
    ) -> Request:
        """A checked request for the answer to a conversation.

        Args:
            messages: mappings with `role` and `content`.
            params: how to sample; None is the model's defaults.
            timeout: seconds after which its answers end with "timeout".
            extra: sampling parameters that replace those of `params`; fields of `ChatOptions`, such as `tools`; and
                variables of the chat template.

        Raises:
            OptionError: a name in `extra` that is none of these.
            ChatTemplateError: the bundle has no template, or it refuses these messages.
            RequestError, PromptTooLongError: the request cannot be run as it is.
        """
        changes = {name: extra.pop(name) for name in SamplingParams.names() & extra.keys()}
        params = (params or SamplingParams()).with_changes(changes)
        options = ChatOptions(**{name: extra.pop(name) for name in ChatOptions.names() & extra.keys()})
        unread = sorted(extra.keys() - self.chat_template.variables)
        if unread:
            read = ", ".join(sorted(self.chat_template.variables)) or "none"
            raise OptionError(
                f"{unread[0]!r} is no sampling parameter, and the chat template does not read it. It reads: {read}."
            )
        plan = self._plan(messages, params, options, extra)
        params = params.with_changes({"structured": plan.structured})
        request = self.request(plan.prompt, params, timeout=timeout, visible=plan.visible, special_tokens=False)
        return replace(request, reader=lambda: ChatReader(plan).read)

    def _plan(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: SamplingParams,
        options: ChatOptions,
        variables: Mapping[str, Any],
    ) -> "AnswerPlan":
        from .chat.answer_plan import AnswerPlanner

        planner = AnswerPlanner(
            self.chat_template,
            self.tokenizer,
            self.compile,
            tool_fallback=options.tool_fallback,
            keep_thoughts=options.reasoning_format == "none",
        )
        lazily = not (params.ignore_eos or params.min_tokens)
        variables = {**options.thinking(planner.chat), **variables}
        return planner.plan(
            messages, options.schemas(), options.choice(), params.structured, lazily=lazily, **variables
        )

    def render(self, messages: Sequence[Mapping[str, Any]], **template: Any) -> str:
        """The prompt for a conversation; `template` goes to the chat template.

        Raises:
            ChatTemplateError: the bundle has no template, or it refuses these messages.
        """
        return self.chat_template.render(messages, **template)

    def compile(self, wanted: StructuredOutput) -> None:
        """Compile structured output for later; RequestError for what cannot be enforced."""
        self._grammars.constraint(wanted)

    def describe(self) -> str:
        """The model in a few words."""
        manifest, core = self.bundle.manifest, self.engine.core
        return (
            f"{str(self.bundle.folder)!r}, {manifest.architecture.parameters / 1e6:,.1f} M parameters, "
            f"{manifest.target.provider}, context {core.executor.capacity}, concurrency {self.options.max_concurrency}"
        )

    def prepare(self) -> None:
        """Load now what the first structured request would otherwise have to wait for."""
        self._grammars.prepare()

    def close(self) -> None:
        """Cancel everything, and release threads and memory."""
        self.engine.close()
        if self._draft_model is not None:
            self._draft_model.close()

    @functools.cached_property
    def chat_template(self) -> "ChatTemplate":
        """Its chat template; ChatTemplateError if it has none."""
        from .chat.template import ChatTemplate

        return ChatTemplate.open(self.bundle, self.tokenizer, self._template_file)

    def _prompt_ids(self, prompt: Prompt, special_tokens: bool) -> list[int]:
        if isinstance(prompt, str):
            ids = self.tokenizer.encode(prompt, add_special_tokens=special_tokens)
            _require_rows(ids, self._vocab_size)  # a tokenizer may have more tokens than the embedding
        else:
            ids = _checked_ids(prompt, self._vocab_size)
        if not ids:
            raise RequestError("The prompt is empty: it needs at least one token.")
        return ids


def _checked_ids(prompt: Sequence[int], vocab_size: int) -> list[int]:
    try:
        ids = [int(token) for token in prompt if not isinstance(token, bool | str | bytes | float)]
    except (TypeError, ValueError) as error:
        raise RequestError(f"A prompt is a text or a list of token ids: {error}.") from error
    if len(ids) != len(prompt):
        raise RequestError("A prompt is a text or a list of token ids; this list holds something else.")
    _require_rows(ids, vocab_size)
    return ids


def _require_rows(ids: Sequence[int], vocab_size: int) -> None:
    wrong = [token for token in ids if not 0 <= token < vocab_size]
    if wrong:
        raise RequestError(f"Token id {wrong[0]} is outside the vocabulary, whose ids are 0 to {vocab_size - 1}.")
