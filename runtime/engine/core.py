"""One turn of the engine: pure control over a scheduler and an executor, without threads.

deadlines → retire → admit → decode → prefill chunk
"""

import logging
import time
from collections.abc import Callable, Iterable

import numpy as np

from ..cache.prefix_cache import PrefixCache
from ..errors import ExecutionError, OnnxlmError
from ..ort.runner_protocol import MAX_SCORED, ModelRunner, StepInterrupted, batch_prefill_of, states_of
from ..sampling.logprobs import FloatArray
from .generation import OutputDelta, RequestState
from .prefill_policy import ChunkedPrefillPolicy, PrefillWork
from .prefix_reuse import PrefixReuse
from .request import Sequence, Status
from .scheduler import Chunk, Move, Scheduler
from .waiting_limit import WaitingLimit

_log = logging.getLogger("onnxlm.engine")
_NO_LOGITS = np.empty(0, np.float32)  # of a chunk that is not the last


class EngineCore:
    """Everything that happens to answers between two looks at the commands. One thread calls it.

    Args:
        executor: computes steps.
        scheduler: decides what runs; nobody else uses it.
        queue: told when an answer stops waiting.
        pace: sizes of prefill chunks.
        clock: seconds, monotonic.
        prefixes: keys and values of earlier prompts, or None.

    Attributes:
        answers: those that have not ended, by the id of their sequence.
        computing: the sequence whose prefill chunk runs right now.
        counts: finished answers, and generated, prompt and cached tokens so far.
    """

    def __init__(
        self,
        executor: ModelRunner,
        scheduler: Scheduler,
        queue: WaitingLimit,
        pace: ChunkedPrefillPolicy,
        clock: Callable[[], float] = time.monotonic,
        prefixes: PrefixCache | None = None,
    ) -> None:
        self.executor = executor
        self.batching = batch_prefill_of(executor)
        self.scheduler = scheduler
        self.queue = queue
        self.pace = pace
        self.clock = clock
        self.reuse = PrefixReuse(executor, scheduler, prefixes)
        self.answers: dict[int, RequestState] = {}
        self.computing: Sequence | None = None
        self._idle_callbacks: list[Callable[[], None]] = []
        self.counts = dict.fromkeys(("finished", "generated", "prompt", "cached"), 0)

    def step(self) -> bool:
        """Do one round of everything; says whether a step was run."""
        self._expire()
        self._retire()
        self._admit()
        decoded = not self._filling and self._decode()
        if decoded:
            self.pace.stepped()
        prefilled = self._prefill()
        self._tell_if_idle()
        return decoded or prefilled

    def accept(self, answer: RequestState) -> None:
        """Queue a new answer."""
        self.answers[answer.sequence.id] = answer
        self.scheduler.submit(answer.sequence)

    def cancel(self, answer: RequestState, reason: str) -> None:
        """End an answer in whatever state it is, if it has not ended."""
        if answer.sequence.id in self.answers:
            self._finish(answer.sequence, reason)

    def when_idle(self, callback: Callable[[], None]) -> None:
        """Call back, once, at the end of a turn after which nothing is left to do."""
        self._idle_callbacks.append(callback)

    def until_deadline(self) -> float | None:
        """Seconds until the next deadline, or None without any."""
        deadlines = [s.deadline for s in self.scheduler if s.deadline is not None]
        return max(0.0, min(deadlines) - self.clock()) if deadlines else None

    def end_all(self, reason: str, error: OnnxlmError | None = None) -> None:
        """End every answer."""
        for answer in list(self.answers.values()):
            answer.error = error
            self._finish(answer.sequence, reason)
        self._tell_if_idle()

    def _tell_if_idle(self) -> None:
        while self._idle_callbacks and not self.answers:
            self._idle_callbacks.pop()()

    def _expire(self) -> None:
        for sequence in self.scheduler.expired(self.clock()):
            self._finish(sequence, "timeout")

    def _retire(self) -> None:
        self._move(self.scheduler.retire())

    def _admit(self) -> None:
        while self.scheduler.waiting:
            size = self._chunk_size(self.scheduler.waiting[0]) if self.batching else 0
            before = len(self.scheduler.prefilling)
            move = self.scheduler.admit(size)
            self._move([move] if move else [])
            if len(self.scheduler.prefilling) == before:
                return
            self._admitted(self.scheduler.prefilling[-1])

    def _admitted(self, admitted: Sequence) -> None:
        self.reuse.restore(admitted)
        if self.answers[admitted.id].timings.admitted is None:
            self.answers[admitted.id].timings.admitted = self.clock()
            self.queue.leave(admitted.prompt_length)
            self.counts["prompt"] += admitted.prompt_length
            self.counts["cached"] += admitted.num_cached

    def _decode(self) -> bool:
        self._move(self.scheduler.grow())
        batch = list(self.scheduler.running)
        if not batch:
            return False
        if len(batch) == 1 and self._decode_ahead(batch[0]):
            return True
        started = self.clock()
        for sequence, logits in zip(batch, self._decode_batch(batch), strict=True):
            self._commit(sequence, logits)
        self.pace.decoded(self.clock() - started)
        return True

    def _decode_ahead(self, sequence: Sequence) -> bool:
        """Verify a draft in one run; False if there is none. In a batch, a draft costs more than it saves."""
        lookup = self.answers[sequence.id].lookup
        room = min(sequence.max_len - len(sequence.tokens) - 1, MAX_SCORED - 1)
        draft = lookup.draft(sequence.tokens, room) if lookup and room > 0 and self.pace.decode_seconds else []
        if not (lookup and draft and self.scheduler.pay_ahead(sequence, len(draft))):
            return False
        started = self.clock()
        ids = np.array([sequence.tokens[-1], *draft], np.int64)
        try:
            scores = self.executor.all_logits(sequence.slot, sequence.num_computed, ids)
        except ExecutionError:
            _log.warning("a draft of %d tokens failed, and is decoded without", len(draft))
            return False
        start = sequence.num_computed
        accepted = self._accept_draft(sequence, draft, scores)
        if accepted < len(draft) and states_of(self.executor):
            self._go_back(sequence, start)
        lookup.verified(len(draft), accepted, self.clock() - started, self.pace.decode_seconds)
        return True

    def _accept_draft(self, sequence: Sequence, draft: list[int], scores: FloatArray) -> int:
        """Sample position by position, as long as that gives the drafted tokens; returns how many held."""
        for position, logits in enumerate(scores):
            self._commit(sequence, logits)
            if sequence.status is not Status.RUNNING or draft[position : position + 1] != sequence.tokens[-1:]:
                return position
        return len(draft)

    def _go_back(self, sequence: Sequence, start: int) -> None:
        """States have seen a whole draft from `start` on, and cannot forget its end: let them see what held, again."""
        if sequence.status is not Status.RUNNING:
            return
        try:
            self.executor.prefill_without_logits(
                sequence.slot, start, np.array(sequence.tokens[start : sequence.num_computed], np.int64)
            )
        except StepInterrupted:
            self._go_back(sequence, start)
        except ExecutionError as error:
            self._fail(sequence, error)

    def _prefill(self) -> bool:
        if not self.scheduler.prefilling:
            return False
        size = self._chunk_size(self.scheduler.prefilling[0])
        if not size:
            return False
        chunks = self.scheduler.next_chunks(size)
        if len(chunks) == 1 or not self._prefill_together(chunks):
            self._prefill_one(chunks[0])
        return True

    @property
    def _streaming_active(self) -> bool:
        """Whether somebody reads along, so that prompts must leave them most of the time."""
        return any(sequence.streamed for sequence in self.scheduler.running)

    @property
    def _filling(self) -> bool:
        """Whether prompts go first: where nobody reads along, a decode step of more slots costs each of them less."""
        return bool(self.scheduler.prefilling) and not self._streaming_active

    def _chunk_size(self, sequence: Sequence) -> int:
        """How many tokens of its prompt to compute next; 0 to decode once more before that."""
        tokens, waited = len(sequence.tokens), self.clock() - sequence.arrival
        prompt = PrefillWork(
            tokens - sequence.num_computed, tokens - sequence.num_cached, waited, self.scheduler.idle_slots
        )
        size = self.pace.size(prompt, streaming_active=self._streaming_active)
        return min(size, MAX_SCORED - 1) if sequence.scored else size

    def _prefill_one(self, chunk: Chunk) -> None:
        started = self.clock()
        logits = self._prefill_chunk(chunk)
        if logits is None:
            return
        self.pace.prefilled(chunk.stop - chunk.start, self.clock() - started)
        self.scheduler.prefilled(chunk)
        self.reuse.reached(chunk.sequence)
        if chunk.stop == len(chunk.sequence.tokens):
            self._first_token(chunk.sequence, logits)

    def _prefill_together(self, chunks: list[Chunk]) -> bool:
        """Complete several prompts in one run; False if that failed, and nothing is committed then."""
        assert self.batching is not None
        started = self.clock()
        ids = [np.array(chunk.sequence.tokens[chunk.start : chunk.stop], np.int64) for chunk in chunks]
        try:
            logits = self.batching.prefill_batch(chunks[0].sequence.slot, [chunk.start for chunk in chunks], ids)
        except ExecutionError as error:
            _log.warning("a prefill of %d prompts failed, and the first is repeated alone: %s", len(chunks), error)
            return False
        self.pace.prefilled(len(ids) * max(map(len, ids)), self.clock() - started)
        for chunk in chunks:
            self.scheduler.prefilled(chunk)
        for chunk, row in zip(chunks, logits, strict=True):
            self.reuse.reached(chunk.sequence)
            self._first_token(chunk.sequence, row)
        return True

    # Steps, and what becomes of them

    def _decode_batch(self, batch: list[Sequence]) -> Iterable[FloatArray | Exception]:
        ids = np.array([sequence.tokens[-1] for sequence in batch], np.int64)
        lengths = np.array([sequence.num_computed for sequence in batch], np.int32)
        try:
            return self.executor.decode(ids, lengths)
        except ExecutionError as error:
            _log.warning("a decode step of %d failed, and is repeated one by one: %s", len(batch), error)
            return map(self._decode_alone, batch)

    def _decode_alone(self, sequence: Sequence) -> FloatArray | Exception:
        """One slot's step on its own, to find out whose fault a failure was."""
        try:
            return self.executor.prefill(sequence.slot, sequence.num_computed, np.array(sequence.tokens[-1:], np.int64))
        except StepInterrupted:
            return self._decode_alone(sequence)
        except ExecutionError as error:
            return error

    def _prefill_chunk(self, chunk: Chunk) -> FloatArray | None:
        """Compute the chunk; None if it failed or was interrupted, and then nothing is committed."""
        sequence = chunk.sequence
        self.computing = sequence
        try:
            ids = np.array(sequence.tokens[chunk.start : chunk.stop], np.int64)
            if not sequence.scored and chunk.stop < len(sequence.tokens):
                self.executor.prefill_without_logits(sequence.slot, chunk.start, ids)
                return _NO_LOGITS
            if not sequence.scored:
                return self.executor.prefill(sequence.slot, chunk.start, ids)
            scores = self.executor.all_logits(sequence.slot, chunk.start, ids)
            self.answers[sequence.id].score_prompt(chunk.start, scores)
            last: FloatArray = scores[-1]
            return last
        except StepInterrupted:
            return None
        except ExecutionError as error:
            self._fail(sequence, error)
            return None
        finally:
            self.computing = None

    def _first_token(self, sequence: Sequence, logits: FloatArray) -> None:
        """The prompt is complete: sample, and let the sequence run if that did not end it."""
        if len(sequence.tokens) >= sequence.max_len:  # max_tokens is 0
            self._finish(sequence, "length")
            return
        self._sample(sequence, logits)
        if sequence.status is Status.PREFILL:
            move = self.scheduler.join(sequence)
            self._move([move] if move else [])

    def _commit(self, sequence: Sequence, logits: FloatArray | Exception) -> None:
        """Sample from a decode step; only then do the step's keys and values count."""
        if isinstance(logits, Exception):
            self._fail(sequence, logits)
        elif self._sample(sequence, logits):
            sequence.num_computed += 1

    def _sample(self, sequence: Sequence, logits: FloatArray) -> bool:
        answer = self.answers[sequence.id]
        try:
            delta, reason = answer.take(logits)
        except Exception as error:  # noqa: BLE001  # one request's fault must not become its neighbours'
            self._fail(sequence, error)
            return False
        self.counts["generated"] += 1
        if answer.timings.first_token is None:
            answer.timings.first_token = self.clock()
        if reason is None:
            self._emit(answer, delta)
        else:
            self._finish(sequence, reason, delta)
        return True

    def _fail(self, sequence: Sequence, error: Exception) -> None:
        if not isinstance(error, OnnxlmError):
            _log.error("request %d failed", sequence.id, exc_info=error)
            error = ExecutionError(f"The request failed inside the engine: {error!r}.")
        self.answers[sequence.id].error = error
        self._finish(sequence, "error")

    def _finish(self, sequence: Sequence, reason: str, last: OutputDelta | None = None) -> None:
        """The one place where an answer ends: exactly once, with exactly one last delta."""
        answer = self.answers.pop(sequence.id)
        if answer.timings.admitted is None:
            self.queue.leave(sequence.prompt_length)
        if self.scheduler.limits.reuse_generated and sequence.status is Status.RUNNING and reason != "error":
            self.reuse.ended(sequence, reason)
        self.scheduler.finish(sequence, reason)
        answer.timings.finished = self.clock()
        self.counts["finished"] += 1
        last = last or OutputDelta(answer.index, answer.rest())
        self._emit(answer, OutputDelta(last.index, last.text, last.token_ids, last.logprobs, reason))

    def _emit(self, answer: RequestState, delta: OutputDelta) -> None:
        try:
            answer.emit(delta)
        except Exception:  # noqa: BLE001  # a listener's fault, such as a closed event loop
            _log.exception("a listener of request %d failed", answer.sequence.id)

    def _move(self, moves: Iterable[Move]) -> None:
        for move in moves:
            self.executor.copy_slot(move.source, move.target, move.length)
        for slot, keep in self.scheduler.released():
            self.executor.free_slot(slot, keep)
