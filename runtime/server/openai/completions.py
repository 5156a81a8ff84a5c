"""POST /v1/completions: prompts as text or token ids, continued as they are."""

from dataclasses import replace
from typing import Any

from ...client import Prompt, Request
from ...engine.handle import TimedDelta
from ..request_log import RequestLog
from ..state import AppState, ServedModel
from .builder import ChoicesBuilder
from .errors import ApiError
from .parameters import sampling_params, structured_output, visible_ids
from .parse import parse
from .protocol import CompletionFields

_MAX_TOKENS = 16  # OpenAI's default of this endpoint


class CompletionBuilder(ChoicesBuilder):
    """A completion request; `of` makes one from its body."""

    prefix, whole, part = "cmpl", "text_completion", "text_completion"

    @classmethod
    def of(cls, service: AppState, body: bytes, record: RequestLog) -> "CompletionBuilder":
        """Read, tokenize and compile; takes long, so it runs in a thread.

        Raises:
            ApiError, RequestError: the request cannot be run as it is.
        """
        fields = parse(CompletionFields, body)
        served = service.find(fields.model)
        record.model, record.stream = served.name, bool(fields.stream)
        prompts = _prompts(fields.prompt)
        served.require_room(len(prompts) * (fields.n or 1))
        wanted = structured_output(fields.structured_outputs)
        count = _logprobs(fields.logprobs)
        params = sampling_params(fields, max_tokens=_MAX_TOKENS, logprobs=count, structured=wanted)
        if fields.echo and count is not None:
            params = replace(params, prompt_logprobs=count)
        timeout = service.timeout(fields.timeout)
        special = fields.add_special_tokens is not False
        visible = visible_ids(served, fields)
        requests = [
            served.model.request(prompt, params, timeout=timeout, special_tokens=special, visible=visible)
            for prompt in prompts
        ]
        return cls(service, served, fields, requests, record)

    def __init__(
        self,
        service: AppState,
        served: ServedModel,
        fields: CompletionFields,
        requests: list[Request],
        record: RequestLog,
    ) -> None:
        super().__init__(service, served, requests, fields, record)
        self._texts = served.token_texts
        self._logprobs = fields.logprobs is not None
        self._echo = bool(fields.echo)
        self._decode = served.model.tokenizer.decode
        self._written: list[list[TimedDelta]] = [[] for _ in self.generation.answers]
        self._starts = [0 for _ in self.generation.answers]  # characters of the text so far

    def chunks(self, piece: TimedDelta) -> list[dict[str, Any]]:
        """One choice, or none while nothing is certain."""
        before = self._written[piece.choice]
        prompt = self._prompt(piece.choice) if self._echo and not before else ""
        start = self._starts[piece.choice]
        self._starts[piece.choice] += len(prompt) + len(piece.delta.text)
        before.append(piece)
        delta = piece.delta
        if not (prompt or delta.text or delta.logprobs or delta.finish_reason):
            return []
        return [self._choice(piece.choice, [piece], prompt, start)]

    @property
    def reason(self) -> str:
        """`finish_reason` of the first choice."""
        return self._written[0][-1].delta.finish_reason or ""

    def choices(self) -> list[dict[str, Any]]:
        """Complete texts."""
        return [
            self._choice(index, pieces, self._prompt(index) if self._echo else "", 0)
            for index, pieces in enumerate(self._written)
        ]

    def _choice(self, index: int, pieces: list[TimedDelta], prompt: str, start: int) -> dict[str, Any]:
        text = prompt + "".join(piece.delta.text for piece in pieces)
        return {
            "index": index,
            "text": text,
            "logprobs": self._scores(index, pieces, bool(prompt), start) if self._logprobs else None,
            "finish_reason": pieces[-1].delta.finish_reason,
        }

    def _scores(self, index: int, pieces: list[TimedDelta], with_prompt: bool, start: int) -> dict[str, Any]:
        answer = self.generation.answers[index]
        prompt = (answer.prompt_logprobs or []) if with_prompt else []
        entries = [*prompt, *(entry for piece in pieces for entry in piece.delta.logprobs)]
        return self._texts.completion(entries, start, answer.sequence.tokens[:1])

    def _prompt(self, index: int) -> str:
        sequence = self.generation.answers[index].sequence
        return self._decode(sequence.tokens[: sequence.prompt_length])


def _prompts(prompt: Any) -> list[Prompt]:
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise ApiError(400, "prompt: the list is empty.", param="prompt")
    return [list(prompt)] if isinstance(prompt[0], int) else list(prompt)


def _logprobs(count: int | None) -> int | None:
    if count is not None and not 0 <= count <= 20:
        raise ApiError(400, f"logprobs must be from 0 to 20, got {count}.", param="logprobs")
    return count
