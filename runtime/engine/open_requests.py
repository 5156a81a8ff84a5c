"""Open requests: they are sampled for, their listeners are told, and each ends exactly once."""

import logging
import time
from collections.abc import Callable

from ..errors import DeviceLostError
from ..sampling.logprobs import FloatArray
from .failures import as_ours
from .generation import OutputDelta, RequestState
from .scheduling.sequence import Sequence
from .scheduling.waiting import WaitingLimit

_log = logging.getLogger("onnxlm.engine")


class OpenRequests:
    """Answers by the id of their sequence. Engine thread only.

    Args:
        queue: told when an answer stops waiting.
        on_end: called with (sequence, reason) before the last piece of an answer is told.
        clock: seconds, monotonic.

    Attributes:
        answers: those that have not ended.
        counts: finished answers, and generated, prompt and cached tokens so far.
        failures_in_a_row: answers that failed since the last token was sampled.
        lost: the error after which the device computes nothing any more, or None.
    """

    def __init__(
        self,
        queue: WaitingLimit,
        on_end: Callable[[Sequence, str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.answers: dict[int, RequestState] = {}
        self.counts = dict.fromkeys(("finished", "generated", "prompt", "cached"), 0)
        self.failures_in_a_row = 0
        self.lost: DeviceLostError | None = None
        self._queue = queue
        self._on_end = on_end
        self._clock = clock

    def __getitem__(self, sequence: Sequence) -> RequestState:
        return self.answers[sequence.id]

    def add(self, answer: RequestState) -> None:
        """Take a new answer."""
        self.answers[answer.sequence.id] = answer

    def admitted(self, sequence: Sequence) -> None:
        """Record that an answer left the queue; a preempted answer is counted once."""
        answer = self[sequence]
        if answer.timings.admitted is None:
            answer.timings.admitted = self._clock()
            self._queue.leave(sequence.prompt_length)
            self.counts["prompt"] += sequence.prompt_length
            self.counts["cached"] += sequence.num_cached

    def sample(self, sequence: Sequence, logits: FloatArray) -> bool:
        """Sample the next token from logits [vocab] and tell the listener; False if that failed the answer."""
        answer = self.answers[sequence.id]
        try:
            delta, reason = answer.take(logits)
        except Exception as error:  # noqa: BLE001  # one request's fault must not become its neighbours'
            self.fail(sequence, error)
            return False
        self.counts["generated"] += 1
        self.failures_in_a_row = 0
        if answer.timings.first_token is None:
            answer.timings.first_token = self._clock()
        if reason is None:
            self._tell(answer, delta)
        else:
            self.finish(sequence, reason, delta)
        return True

    def fail(self, sequence: Sequence, error: Exception) -> None:
        """End an answer with an error."""
        self.failures_in_a_row += 1
        self.lost = error if isinstance(error, DeviceLostError) else self.lost
        self[sequence].error = as_ours(error, sequence.id)
        self.finish(sequence, "error")

    def finish(self, sequence: Sequence, reason: str, last: OutputDelta | None = None) -> None:
        """End an answer. This is the only place that does: each answer ends once, with one last delta."""
        answer = self.answers.pop(sequence.id)
        if answer.timings.admitted is None:
            self._queue.leave(sequence.prompt_length)
        self._on_end(sequence, reason)
        answer.timings.finished = self._clock()
        self.counts["finished"] += 1
        last = last or OutputDelta(answer.index, answer.rest())
        self._tell(answer, OutputDelta(last.index, last.text, last.token_ids, last.logprobs, reason))

    def _tell(self, answer: RequestState, delta: OutputDelta) -> None:
        if answer.listener is None:
            return
        try:
            answer.listener(answer, delta)
        except Exception:  # noqa: BLE001  # a listener's fault, such as a closed event loop
            _log.exception("a listener of request %d failed", answer.sequence.id)
