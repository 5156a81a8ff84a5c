"""Prefill: computes the next chunk of one prompt, or the rest of several, in one run."""

import logging
from collections.abc import Callable

import numpy as np

from ..errors import ExecutionError
from ..ort.runner_protocol import MAX_SCORED, ModelRunner, StepInterrupted, adapter_selection, batch_prefill_of
from ..sampling.logprobs import FloatArray
from .failures import execution_errors
from .open_requests import OpenRequests
from .prefix_reuse import PrefixReuse
from .scheduling.decision import Chunk
from .scheduling.prefill_policy import ChunkedPrefillPolicy, PrefillWork
from .scheduling.scheduler import Scheduler
from .scheduling.sequence import Sequence

_log = logging.getLogger("onnxlm.engine")
_NO_LOGITS = np.empty(0, np.float32)  # of a chunk that is not the last


class Prefill:
    """Computes prompts. Engine thread only.

    Args:
        executor: computes steps.
        scheduler: says which chunks, and is told what is done.
        requests: the open requests.
        reuse: caches what later prompts may share, if anything does.
        policy: sizes of chunks.
        clock: seconds, monotonic.

    Attributes:
        computing: the sequence whose chunk runs now; other threads read it, to interrupt the run.
    """

    def __init__(
        self,
        executor: ModelRunner,
        scheduler: Scheduler,
        requests: OpenRequests,
        reuse: PrefixReuse | None,
        policy: ChunkedPrefillPolicy,
        clock: Callable[[], float],
    ) -> None:
        self._executor = executor
        self._select = adapter_selection(executor)
        self._batching = batch_prefill_of(executor)
        self._scheduler = scheduler
        self._requests = requests
        self._reuse = reuse
        self._policy = policy
        self._clock = clock
        self.computing: Sequence | None = None

    @property
    def streaming_active(self) -> bool:
        """Whether a running answer is streamed, so that prompts must not hold it up."""
        return any(sequence.streamed for sequence in self._scheduler.running)

    @property
    def room_beside(self) -> int:
        """Most tokens of several prompts in one run; 0 if the executor cannot prefill several."""
        return self._chunk_size(self._scheduler.waiting.first) if self._batching and self._scheduler.waiting else 0

    def run(self) -> list[tuple[Sequence, FloatArray]] | None:
        """Compute the next chunk or chunks; returns prompts that are complete, with the logits [vocab] after them.

        None: nothing is to be computed in this step.
        """
        size = self._chunk_size(self._scheduler.prefilling[0]) if self._scheduler.prefilling else 0
        chunks = self._scheduler.next_chunks(size) if size else []
        if not chunks:
            return None
        if len(chunks) > 1 and (complete := self._together(chunks)):
            return complete
        return self._alone(chunks[0])

    def _chunk_size(self, sequence: Sequence) -> int:
        """Tokens of the next chunk; 0 to decode once more first."""
        tokens, waited = len(sequence.tokens), self._clock() - sequence.arrival
        idle = self._scheduler.idle_slots
        work = PrefillWork(tokens - sequence.num_computed, tokens - sequence.num_cached, waited, idle)
        size = self._policy.size(work, streaming_active=self.streaming_active)
        return min(size, MAX_SCORED - 1) if sequence.scored else size

    def _alone(self, chunk: Chunk) -> list[tuple[Sequence, FloatArray]]:
        started = self._clock()
        logits = self._computed(chunk)
        if logits is None:
            return []
        self._policy.prefilled(chunk.stop - chunk.start, self._clock() - started)
        self._scheduler.prefilled(chunk)
        self._reached(chunk)
        return [(chunk.sequence, logits)] if chunk.stop == len(chunk.sequence.tokens) else []

    def _together(self, chunks: list[Chunk]) -> list[tuple[Sequence, FloatArray]]:
        """Complete several prompts in one run; empty if the run failed, and then nothing is committed."""
        assert self._batching is not None
        started = self._clock()
        ids = [np.array(chunk.sequence.tokens[chunk.start : chunk.stop], np.int64) for chunk in chunks]
        try:
            with execution_errors(f"A prefill of {len(chunks)} prompts"):
                if self._select:
                    self._select([chunk.sequence.adapter for chunk in chunks])
                logits = self._batching.prefill_batch(chunks[0].sequence.slot, [chunk.start for chunk in chunks], ids)
        except ExecutionError as error:
            _log.warning("%s The first prompt is repeated alone.", error)
            return []
        self._policy.prefilled(len(ids) * max(map(len, ids)), self._clock() - started)
        for chunk in chunks:
            self._scheduler.prefilled(chunk)
        for chunk in chunks:
            self._reached(chunk)
        return [(chunk.sequence, row) for chunk, row in zip(chunks, logits, strict=True)]

    def _reached(self, chunk: Chunk) -> None:
        if self._reuse is not None:
            self._reuse.reached(chunk.sequence)

    def _computed(self, chunk: Chunk) -> FloatArray | None:
        """The logits after a chunk; None if it failed or was interrupted, and then nothing is committed."""
        sequence = self.computing = chunk.sequence
        try:
            with execution_errors("A prefill"):
                return self._run(sequence, chunk)
        except StepInterrupted:
            return None
        except ExecutionError as error:
            self._requests.fail(sequence, error)
            return None
        finally:
            self.computing = None

    def _run(self, sequence: Sequence, chunk: Chunk) -> FloatArray:
        ids = np.array(sequence.tokens[chunk.start : chunk.stop], np.int64)
        if self._select:
            self._select([sequence.adapter])
        if sequence.scored:
            scores = self._executor.all_logits(sequence.slot, chunk.start, ids)
            self._requests[sequence].score_prompt(chunk.start, scores)
            last: FloatArray = scores[-1]
            return last
        if chunk.stop < len(sequence.tokens):
            self._executor.prefill_without_logits(sequence.slot, chunk.start, ids)
            return _NO_LOGITS
        return self._executor.prefill(sequence.slot, chunk.start, ids)
