"""One thread that runs all texts that wait, those of several callers side by side."""

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..engine.engine import EngineStats
from ..engine.scheduling.waiting import WaitingLimit
from ..errors import DeviceLostError, EngineClosedError, ExecutionError, OnnxlmError
from .batches import BATCH_TOKENS, batch_with

_log = logging.getLogger("onnxlm.engine")
_SLOWEST = 0.05  # seconds a token: a long text in one run is no stall before that
_WINDOW = 256  # texts among which those of similar length are looked for
Rows = npt.NDArray[np.float32]


class Runner(Protocol):
    """What computes rows."""

    def rows(self, texts: Sequence[Sequence[int]]) -> Rows:
        """`[texts, width]`."""


@dataclass(eq=False)
class _Job:
    """The texts of one caller, and the rows that are there; `left` are the places that are not."""

    texts: Sequence[Sequence[int]]
    future: "Future[Rows]"
    left: deque[int]
    rows: list[Any] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return sum(len(text) for text in self.texts)


class EncoderEngine:
    """Turns lists of texts into rows. Its methods may be called from any thread.

    Callers take turns: each batch is built around the first text of the caller whose turn it is, and filled with texts
    of similar length of all of them.

    Args:
        runner: computes.
        queue: how many callers and tokens may wait.
        batch_tokens: positions of a batch.
    """

    def __init__(self, runner: Runner, queue: WaitingLimit, batch_tokens: int = BATCH_TOKENS) -> None:
        self._runner, self._queue, self._batch_tokens = runner, queue, batch_tokens
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._heartbeat, self._patience = time.monotonic(), 0.0
        self._finished = self._tokens = self._failures = self._running = 0
        self._lost: str | None = None
        self._thread = threading.Thread(target=self._loop, name="onnxlm-encoder", daemon=True)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def submit(self, texts: Sequence[Sequence[int]]) -> "Future[Rows]":
        """The rows of these texts, `[texts, width]`, when they are there. Cancelling the future drops what is left.

        Raises:
            QueueFullError: too much is waiting.
            EngineClosedError: the engine is closed.
        """
        job = _Job(texts, Future(), deque(range(len(texts))), [None] * len(texts))
        with self._changed:
            if self._closed or self._lost:
                raise EngineClosedError(self._lost or "The model is closed: it takes no more texts.")
            self._queue.enter(1, job.tokens)
            self._jobs.append(job)
            self._changed.notify()
        return job.future

    def stats(self) -> EngineStats:
        """What it does now, and what it did; what belongs to generation is 0."""
        with self._changed:
            waiting = max(0, len(self._jobs) - self._running)
            now = time.monotonic()
            at_work = self._running and now - self._heartbeat < self._patience
            alive = not self._closed and self._thread.is_alive() and self._lost is None
            return EngineStats(
                running=self._running, waiting=waiting, kv_blocks_used=0, kv_blocks_total=0, finished=self._finished,
                generated_tokens=0, prompt_tokens=self._tokens, cached_tokens=0, preemptions=0,
                heartbeat=now if at_work else self._heartbeat, alive=alive, failures_in_a_row=self._failures,
                lost=self._lost,
            )  # fmt: skip

    def close(self) -> None:
        """End the thread after the batch it is at; what still waits fails."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()
        with self._changed:
            for job in self._jobs:
                _fail(job, EngineClosedError("The model was closed before the text had its turn."))
            self._jobs.clear()

    def _loop(self) -> None:
        while True:
            with self._changed:
                self._drop_cancelled()
                while not self._jobs and not self._closed:
                    self._changed.wait()
                    self._drop_cancelled()
                if self._closed:
                    return
                batch = self._next_batch()
                self._running = len({id(job) for job, _ in batch})
                self._heartbeat = time.monotonic()
                self._patience = _SLOWEST * sum(len(job.texts[place]) for job, place in batch)
            self._run(batch)

    def _next_batch(self) -> list[tuple[_Job, int]]:
        """Texts to run now, the first of them of the job at the front, which then goes to the end."""
        window = [(job, place) for job in self._jobs for place in job.left][:_WINDOW]
        chosen = batch_with(0, [len(job.texts[place]) for job, place in window], self._batch_tokens)
        self._jobs.rotate(-1)
        return [window[i] for i in chosen]

    def _run(self, batch: list[tuple[_Job, int]]) -> None:
        try:
            rows = self._runner.rows([job.texts[place] for job, place in batch])
            bad = [not np.isfinite(row).all() for row in rows]
        except Exception as error:  # noqa: BLE001  # whatever a runner raises is its batch's
            _log.exception("a batch of %d texts failed", len(batch))
            self._failed({id(job): job for job, _ in batch}.values(), error)
            return
        with self._changed:
            self._running, self._failures = 0, 0
            for (job, place), row, wrong in zip(batch, rows, bad, strict=True):
                if wrong:
                    self._end(job, ExecutionError("the model computed NaN or infinity for this text."))
                    continue
                job.rows[place] = row
                self._tokens += len(job.texts[place])
                if place in job.left:
                    job.left.remove(place)
            for job in {id(job): job for job, _ in batch}.values():
                if not job.left and job in self._jobs:
                    self._end(job, None)

    def _failed(self, jobs: Any, error: Exception) -> None:
        ours = error if isinstance(error, OnnxlmError) else ExecutionError(f"The batch failed: {error!r}.")
        with self._changed:
            self._running, self._failures = 0, self._failures + 1
            if isinstance(ours, DeviceLostError):
                self._lost = str(ours)
            for job in jobs:
                self._end(job, ours)

    def _end(self, job: _Job, error: OnnxlmError | None) -> None:
        """Remove a job and give its result to the caller. Inside the lock."""
        if job not in self._jobs:
            return
        self._jobs.remove(job)
        self._queue.leave(job.tokens)
        self._finished += 1
        if error is not None:
            _fail(job, error)
        elif job.future.set_running_or_notify_cancel():
            job.future.set_result(np.stack(job.rows))

    def _drop_cancelled(self) -> None:
        for job in [job for job in self._jobs if job.future.cancelled()]:
            self._jobs.remove(job)
            self._queue.leave(job.tokens)


def _fail(job: _Job, error: OnnxlmError) -> None:
    if job.future.set_running_or_notify_cancel():
        job.future.set_exception(error)
