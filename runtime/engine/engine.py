"""The engine: one thread owns all state; everybody else posts commands to it.

commands → one step (`core.py`) → wait when there is nothing to do
"""

import atexit
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..cache.prefix_cache import PrefixCache
from ..errors import DeviceLostError, EngineClosedError, OnnxlmError
from ..ort.runner_protocol import ModelRunner
from .core import EngineCore
from .generation import RequestState
from .scheduling.prefill_policy import ChunkedPrefillPolicy
from .scheduling.scheduler import Scheduler
from .scheduling.waiting import Reservation, WaitingLimit

_EXIT_SECONDS = 10.0  # for a step that is being computed when the interpreter ends
_log = logging.getLogger("onnxlm.engine")


@dataclass(frozen=True)
class EngineStats:
    """A snapshot of the engine: its current work, and counts since it started.

    `lost` is why the device computes nothing any more, or None.
    `kv_bytes` is the most memory that keys, values and states may take.
    `failures_in_a_row` counts answers that failed since the last token was sampled.
    `heartbeat` is the monotonic time of the loop's last step: while work exists, it must not stand still.
    """

    running: int
    waiting: int
    kv_blocks_used: int
    kv_blocks_total: int
    finished: int
    generated_tokens: int
    prompt_tokens: int
    cached_tokens: int
    preemptions: int
    heartbeat: float
    alive: bool
    failures_in_a_row: int = 0
    lost: str | None = None
    kv_bytes: int = 0


class Engine:
    """Runs answers to their ends, many at a time. Its methods may be called from any thread.

    Args:
        executor: computes steps; closed with the engine.
        scheduler: decides what runs.
        queue: how much may wait.
        policy: sizes of prefill chunks.
        prefixes: keys and values of earlier prompts, or None.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        executor: ModelRunner,
        scheduler: Scheduler,
        *,
        queue: WaitingLimit | None = None,
        policy: ChunkedPrefillPolicy | None = None,
        prefixes: PrefixCache | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.core = EngineCore(
            executor, scheduler, queue or WaitingLimit(1024), policy or ChunkedPrefillPolicy(512), clock, prefixes
        )
        self._commands: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()  # guards the commands and the flags below
        self._refusal: OnnxlmError | None = None  # why nothing new is taken
        self._stopping = False
        self._ended = False
        self._draining = self._drained = False
        self._thread: threading.Thread | None = None
        self._heartbeat = clock()

    @property
    def longest(self) -> int:
        """Most tokens of one sequence, prompt and answer."""
        return self.core.scheduler.longest

    def reserve(self, answers: int) -> Reservation:
        """Keep room in the queue for answers that will be submitted; refusals are those of `submit`."""
        with self._wake:
            if self._refusal is not None:
                raise self._refusal
            return self.core.queue.reserve(answers)

    def submit(self, answers: Iterable[RequestState], reservation: Reservation | None = None) -> None:
        """Start the answers of one request, or refuse them all. The room that was reserved for them is used up.

        Raises:
            QueueFullError: too much is waiting.
            EngineClosedError: the engine has stopped, or is about to.
        """
        accepted = list(answers)
        tokens = sum(answer.sequence.prompt_length for answer in accepted)
        with self._wake:
            if self._refusal is not None:
                raise self._refusal
            self.core.queue.enter(len(accepted), tokens, reservation)
            self._commands.extend(_call(self.core.accept, answer) for answer in accepted)
            self._wake.notify_all()

    def cancel(self, answer: RequestState, reason: str = "cancelled") -> None:
        """End an answer soon, whatever its stage; does nothing if it has ended."""
        with self._wake:
            self._commands.append(_call(self.core.cancel, answer, reason))
            self._wake.notify_all()
        if self.core.prefill.computing is answer.sequence:
            self._interrupt()

    def drain(self, timeout: float | None = None) -> bool:
        """Refuse new requests and wait until those accepted have ended; False if `timeout` seconds were not enough.

        Raises:
            EngineClosedError: the engine has stopped, before this call or while it waited.
        """
        with self._wake:
            self._refuse(EngineClosedError("The engine is draining and takes no more requests."))
            self._draining = True
            self._wake.notify_all()
            self._wake.wait_for(lambda: self._drained or self._ended, timeout)
            if self._ended and not self._drained:
                assert self._refusal is not None
                raise self._refusal
            return self._drained

    def stats(self) -> EngineStats:
        """A snapshot; a count may be one step old."""
        core, scheduler = self.core, self.core.scheduler
        return EngineStats(
            running=len(scheduler.running) + len(scheduler.prefilling),
            waiting=core.queue.requests,
            kv_blocks_used=scheduler.pool.total - scheduler.pool.free,
            kv_blocks_total=scheduler.pool.total,
            finished=core.requests.counts["finished"],
            generated_tokens=core.requests.counts["generated"],
            prompt_tokens=core.requests.counts["prompt"],
            cached_tokens=core.requests.counts["cached"],
            preemptions=scheduler.preemptions,
            failures_in_a_row=core.requests.failures_in_a_row,
            lost=None if core.requests.lost is None else str(core.requests.lost),
            kv_bytes=scheduler.pool.total * scheduler.pool.block_tokens * core.executor.bytes_per_token,
            heartbeat=self._heartbeat,
            alive=self._thread is not None and self._thread.is_alive() and not self._ended,
        )

    def start(self) -> None:
        """Run the loop in a thread of its own, until `close` or the interpreter's end."""
        atexit.register(self._stop_at_exit)
        self._thread = threading.Thread(target=self._loop, name="onnxlm-engine", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Cancel what is left, stop the thread and release the executor; more calls do nothing."""
        with self._wake:
            already, self._stopping = self._stopping, True
            self._refuse(EngineClosedError("The engine is closed. Load the model again."))
            self._wake.notify_all()
        if already:
            return
        atexit.unregister(self._stop_at_exit)
        self._interrupt()
        if self._thread is not None:
            self._thread.join()
        self.core.executor.close()

    def _stop_at_exit(self) -> None:
        """Let the thread leave its run: the interpreter's end would abort the process from inside one."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        self._interrupt()
        if self._thread is not None:
            self._thread.join(_EXIT_SECONDS)

    def run_once(self) -> bool:
        """Take the commands and run one iteration; returns whether it computed anything."""
        self._heartbeat = self.core.clock()
        while self._commands:
            self._commands.popleft()()
        computed = self.core.step()
        if self._draining:
            self._tell_if_drained()
        return computed

    def _loop(self) -> None:
        error: OnnxlmError | None = None
        try:
            while not self._stopping:
                computed = self.run_once()
                if self.core.requests.lost is not None:
                    raise self.core.requests.lost
                if not computed:
                    self._wait()
        except DeviceLostError as lost:
            _log.error("the engine stopped: %s", lost)
            error = lost
        except Exception as fault:  # noqa: BLE001  # our own fault: no request may wait for ever
            _log.exception("the engine stopped")
            error = EngineClosedError(f"The engine stopped: {fault!r}. Load the model again.")
        finally:
            self._end(error)

    def _interrupt(self) -> None:
        """Stop a prefill that runs; where that fails, it runs to its end."""
        try:
            self.core.executor.interrupt()
        except Exception:  # noqa: BLE001  # an embedder's fault must not keep a caller from cancelling or closing
            _log.exception("a running prefill could not be interrupted")

    def _tell_if_drained(self) -> None:
        with self._wake:
            if not self._commands and not self.core.requests.answers:
                self._drained = True
                self._wake.notify_all()

    def _wait(self) -> None:
        with self._wake:
            if not self._commands and not self._stopping:
                self._wake.wait(self.core.until_deadline())

    def _end(self, error: OnnxlmError | None) -> None:
        with self._wake:
            self._ended = True
            if error is not None:
                self._refusal = error
            while self._commands:
                self._commands.popleft()()
        self.core.end_all("cancelled" if error is None else "error", error)
        with self._wake:
            self._wake.notify_all()  # whoever drains

    def _refuse(self, error: OnnxlmError) -> None:
        self._refusal = self._refusal or error


def _call(function: Callable[..., None], *arguments: object) -> Callable[[], None]:
    return lambda: function(*arguments)
