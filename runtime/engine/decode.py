"""A decode step: one token for every running sequence."""

import logging
from collections.abc import Callable, Iterable

import numpy as np

from ..errors import ExecutionError
from ..ort.runner_protocol import ModelRunner, StepInterrupted, adapter_selection
from ..sampling.logprobs import FloatArray
from .draft_verify import DraftVerifier
from .failures import execution_errors
from .open_requests import OpenRequests
from .scheduling.prefill_policy import ChunkedPrefillPolicy
from .scheduling.sequence import Sequence

_log = logging.getLogger("onnxlm.engine")


class Decode:
    """Computes and samples the next tokens. Engine thread only.

    Args:
        executor: computes steps.
        requests: whose tokens they are.
        drafts: verifies several tokens of one sequence at once.
        policy: told how long a step takes.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        executor: ModelRunner,
        requests: OpenRequests,
        drafts: DraftVerifier,
        policy: ChunkedPrefillPolicy,
        clock: Callable[[], float],
    ) -> None:
        self._executor = executor
        self._select = adapter_selection(executor)
        self._requests = requests
        self._drafts = drafts
        self._policy = policy
        self._clock = clock

    def run(self, batch: list[Sequence]) -> None:
        """One step for the sequences in slots 0 … n-1; a single sequence may take several tokens from a draft."""
        if len(batch) == 1 and self._drafts.run(batch[0]):
            return
        started = self._clock()
        for sequence, logits in zip(batch, self._logits(batch), strict=True):
            self._commit(sequence, logits)
        self._policy.decoded(self._clock() - started)

    def _logits(self, batch: list[Sequence]) -> Iterable[FloatArray | ExecutionError]:
        ids = np.array([sequence.tokens[-1] for sequence in batch], np.int64)
        lengths = np.array([sequence.num_computed for sequence in batch], np.int32)
        try:
            with execution_errors(f"A decode step of {len(batch)}"):
                if self._select:
                    self._select([sequence.adapter for sequence in batch])
                return self._executor.decode(ids, lengths)
        except ExecutionError as error:
            _log.warning("%s It is repeated one by one.", error)
            return map(self._alone, batch)

    def _alone(self, sequence: Sequence) -> FloatArray | ExecutionError:
        """The step of one sequence alone, to find which one makes the batch fail."""
        token = np.array(sequence.tokens[-1:], np.int64)
        try:
            with execution_errors("A decode step"):
                if self._select:
                    self._select([sequence.adapter])
                return self._executor.prefill(sequence.slot, sequence.num_computed, token)
        except StepInterrupted:
            return self._alone(sequence)
        except ExecutionError as error:
            return error

    def _commit(self, sequence: Sequence, logits: FloatArray | ExecutionError) -> None:
        """Sample a token; only then do the step's keys and values count as computed."""
        if isinstance(logits, ExecutionError):
            self._requests.fail(sequence, logits)
        elif self._requests.sample(sequence, logits):
            sequence.num_computed += 1
