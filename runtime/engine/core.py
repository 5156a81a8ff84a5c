"""One engine step: controls a scheduler and an executor, without threads.

deadlines → retire → admit → decode → prefill chunk
"""

import logging
import time
from collections.abc import Callable

from ..cache.prefix_cache import PrefixCache
from ..errors import ExecutionError, OnnxlmError
from ..ort.runner_protocol import ModelRunner, states_of
from ..sampling.logprobs import FloatArray
from .decode import Decode
from .draft_verify import DraftVerifier
from .failures import execution_errors
from .generation import RequestState
from .open_requests import OpenRequests
from .prefill import Prefill
from .prefix_reuse import PrefixReuse
from .scheduling.decision import NOTHING, Decision, Move
from .scheduling.prefill_policy import ChunkedPrefillPolicy
from .scheduling.scheduler import Scheduler
from .scheduling.sequence import Sequence, Status
from .scheduling.waiting import Deadlines, WaitingLimit

_log = logging.getLogger("onnxlm.engine")


class EngineCore:
    """One engine iteration at a time: expire, retire, admit, decode, prefill. Engine thread only.

    Args:
        executor: computes steps.
        scheduler: decides what runs; nobody else uses it.
        queue: counts waiting answers.
        policy: sizes of prefill chunks.
        clock: seconds, monotonic.
        prefixes: the prefix cache, or None.

    Attributes:
        requests: open answers, and counts of ended ones.
        prefill: computes prompts; knows the sequence whose chunk runs now.
    """

    def __init__(
        self,
        executor: ModelRunner,
        scheduler: Scheduler,
        queue: WaitingLimit,
        policy: ChunkedPrefillPolicy,
        clock: Callable[[], float] = time.monotonic,
        prefixes: PrefixCache | None = None,
    ) -> None:
        self.executor = executor
        self.scheduler = scheduler
        self.queue = queue
        self.policy = policy
        self.clock = clock
        self.requests = OpenRequests(queue, self._ended, clock)
        reusing = prefixes is not None or states_of(executor) is not None
        self._reuse = PrefixReuse(executor, scheduler, prefixes) if reusing else None
        self.prefill = Prefill(executor, scheduler, self.requests, self._reuse, policy, clock)
        drafts = DraftVerifier(executor, scheduler, self.requests, policy, clock)
        self._decode = Decode(executor, self.requests, drafts, policy, clock)
        self._deadlines = Deadlines()

    def step(self) -> bool:
        """One iteration; returns whether anything was computed."""
        for sequence in self._deadlines.expired(self.clock()):
            self.requests.finish(sequence, "timeout")
        self._retire()
        self._admit()
        decoded = not self._filling and self._decode_batch()
        if decoded:
            self.policy.stepped()
        return self._prefill_chunk() or decoded

    def accept(self, answer: RequestState) -> None:
        """Queue a new answer."""
        self.requests.add(answer)
        self._deadlines.add(answer.sequence)
        self.scheduler.submit(answer.sequence)

    def cancel(self, answer: RequestState, reason: str) -> None:
        """End an answer in any state, unless it has ended."""
        if answer.sequence.id in self.requests.answers:
            self.requests.finish(answer.sequence, reason)

    def until_deadline(self) -> float | None:
        """Seconds until the next deadline, or None without any."""
        deadline = self._deadlines.next()
        return None if deadline is None else max(0.0, deadline - self.clock())

    def end_all(self, reason: str, error: OnnxlmError | None = None) -> None:
        """End every answer."""
        for answer in list(self.requests.answers.values()):
            answer.error = error
            self.requests.finish(answer.sequence, reason)

    @property
    def _filling(self) -> bool:
        """Whether prompts go first: without streamed answers, filling the batch before decoding is cheaper."""
        return bool(self.scheduler.prefilling) and not self.prefill.streaming_active

    def _retire(self) -> None:
        while self._carry_out(self.scheduler.retire()):  # a move that failed has ended one more
            pass

    def _admit(self) -> None:
        while self.scheduler.waiting:
            decision = self.scheduler.admit(self.prefill.room_beside)
            self._carry_out(decision)
            if decision.admitted is None:
                return
            if decision.admitted.status is Status.PREFILL:
                if self._reuse is not None:
                    self._reuse.restore(decision.admitted)
                self.requests.admitted(decision.admitted)

    def _decode_batch(self) -> bool:
        if self._carry_out(self.scheduler.grow()):
            self._retire()
        batch = list(self.scheduler.running)
        if batch:
            self._decode.run(batch)
        return bool(batch)

    def _prefill_chunk(self) -> bool:
        complete = self.prefill.run()
        for sequence, logits in complete or ():
            self._first_token(sequence, logits)
        return complete is not None

    def _first_token(self, sequence: Sequence, logits: FloatArray) -> None:
        """Sample the first token of a complete prompt; the sequence then joins the batch unless it has ended."""
        if len(sequence.tokens) >= sequence.max_len:  # max_tokens is 0
            self.requests.finish(sequence, "length")
            return
        self.requests.sample(sequence, logits)
        if sequence.status is Status.PREFILL:
            self._carry_out(self.scheduler.join(sequence))

    def _ended(self, sequence: Sequence, reason: str) -> None:
        reusable = self.scheduler.limits.reuse_generated and sequence.status is Status.RUNNING and reason != "error"
        if reusable and self._reuse is not None:
            self._reuse.ended(sequence, reason)
        self._carry_out(self.scheduler.finish(sequence, reason))

    def _carry_out(self, decision: Decision) -> bool:
        """Carry out a decision; returns whether a move failed. A failed move fails the sequence that was to move."""
        if decision is NOTHING:
            return False
        failed = [move.sequence for move in decision.moves if not self._moved(move)]
        for slot, keep in decision.released:
            try:
                with execution_errors(f"Giving back memory of slot {slot}"):
                    self.executor.free_slot(slot, keep)
            except ExecutionError as error:
                _log.warning("%s It stays taken until the slot is used again.", error)
        return bool(failed)

    def _moved(self, move: Move) -> bool:
        sequence = move.sequence
        try:
            with execution_errors(f"Copying slot {move.source} to slot {move.target}"):
                self.executor.copy_slot(move.source, move.target, move.length)
        except ExecutionError as error:
            if sequence.id in self.requests.answers:
                self.requests.fail(sequence, error)
            return False
        return True
