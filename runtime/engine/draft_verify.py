"""Verifies a draft of several tokens in one run. In a batch, a draft costs more than it saves."""

import logging
from collections.abc import Callable

import numpy as np

from ..errors import ExecutionError
from ..ort.runner_protocol import MAX_SCORED, ModelRunner, StepInterrupted, adapter_selection, states_of
from ..sampling.logprobs import FloatArray
from .failures import execution_errors
from .open_requests import OpenRequests
from .scheduling.prefill_policy import ChunkedPrefillPolicy
from .scheduling.scheduler import Scheduler
from .scheduling.sequence import Sequence, Status

_log = logging.getLogger("onnxlm.engine")


class DraftVerifier:
    """Accepts the drafted tokens that sampling gives too. Engine thread only.

    Args:
        executor: gives the logits of several positions, where it can.
        scheduler: reserves memory for a draft.
        requests: the open requests; those with a `lookup` take drafts.
        policy: knows how long a decode step takes.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        executor: ModelRunner,
        scheduler: Scheduler,
        requests: OpenRequests,
        policy: ChunkedPrefillPolicy,
        clock: Callable[[], float],
    ) -> None:
        self._executor = executor
        self._select = adapter_selection(executor)
        self._scheduler = scheduler
        self._requests = requests
        self._policy = policy
        self._clock = clock

    def run(self, sequence: Sequence) -> bool:
        """Verify a draft in one run; False if there is none, or it failed."""
        lookup = self._requests[sequence].lookup
        room = min(sequence.max_len - len(sequence.tokens) - 1, MAX_SCORED - 1)
        draft = lookup.draft(sequence.tokens, room) if lookup and room > 0 and self._policy.decode_seconds else []
        if not (lookup and draft and self._scheduler.pay_ahead(sequence, len(draft))):
            return False
        started, start = self._clock(), sequence.num_computed
        scores = self._scores(sequence, draft)
        if scores is None:
            return False
        accepted = self._accept(sequence, draft, scores)
        if accepted < len(draft) and states_of(self._executor):
            self._go_back(sequence, start)
        lookup.verified(len(draft), accepted, self._clock() - started, self._policy.decode_seconds)
        return True

    def _scores(self, sequence: Sequence, draft: list[int]) -> FloatArray | None:
        ids = np.array([sequence.tokens[-1], *draft], np.int64)
        try:
            with execution_errors(f"A draft of {len(draft)} tokens"):
                if self._select:
                    self._select([sequence.adapter])
                return self._executor.all_logits(sequence.slot, sequence.num_computed, ids)
        except ExecutionError as error:
            _log.warning("%s Decoding goes on without it.", error)
            return None

    def _accept(self, sequence: Sequence, draft: list[int], scores: FloatArray) -> int:
        """Sample position by position while that gives the drafted tokens; returns how many were accepted."""
        for position, logits in enumerate(scores):
            if self._requests.sample(sequence, logits):
                sequence.num_computed += 1
            if sequence.status is not Status.RUNNING or draft[position : position + 1] != sequence.tokens[-1:]:
                return position
        return len(draft)

    def _go_back(self, sequence: Sequence, start: int) -> None:
        """Recompute the accepted tokens from `start` on, because recurrent state cannot be rewound."""
        if sequence.status is not Status.RUNNING:
            return
        held = np.array(sequence.tokens[start : sequence.num_computed], np.int64)
        try:
            with execution_errors("Going back behind a draft"):
                self._executor.prefill_without_logits(sequence.slot, start, held)
        except StepInterrupted:
            self._go_back(sequence, start)
        except ExecutionError as error:
            self._requests.fail(sequence, error)
