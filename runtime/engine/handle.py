"""RequestHandle: submits answers, iterates over their deltas (blocking or async), and cancels them."""

import queue
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ..errors import ExecutionError
from .generation import OutputDelta, RequestState
from .scheduling.waiting import Reservation

if TYPE_CHECKING:
    import asyncio

    from .engine import Engine


@dataclass(frozen=True, slots=True)
class TimedDelta:
    """What one step added to one answer, and when, in seconds of a monotonic clock."""

    choice: int
    delta: OutputDelta
    at: float


Observer = Callable[[TimedDelta], None]
Reader = Callable[[OutputDelta], OutputDelta]


class RequestHandle:
    """Answers that belong together: submitted when the handle is made, cancelled when it is closed or dropped.

    It is an iterator of OutputDelta, blocking (`for`) and asynchronous (`async for`), for one reader. The last delta of
    an answer has a finish_reason; an answer that failed raises its error from the iterator.

    Args:
        engine: runs the answers.
        answers: one per choice.
        streamed: somebody reads while the answers grow. Other prompts are then computed in chunks between these tokens,
            and the event loop is woken for every piece; otherwise only when an answer ends.
        readers: one per choice, each takes the choice's deltas in turn and returns them as they are read; or none.
        observer: called from the engine's thread with every piece; must not block.
        reservation: room in the queue that was kept for these answers.

    Raises:
        QueueFullError: too much is waiting.
        EngineClosedError: the engine has stopped, or is about to.
    """

    def __init__(
        self,
        engine: "Engine",
        answers: Sequence[RequestState],
        *,
        streamed: bool = False,
        readers: Sequence[Reader] = (),
        observer: Observer | None = None,
        reservation: Reservation | None = None,
    ) -> None:
        self._readers = readers
        self.answers = tuple(answers)
        self._engine = engine
        self._inbox = _Inbox(streamed, observer)
        self._open = set(range(len(self.answers)))  # choices whose last piece was not read
        for choice, answer in enumerate(self.answers):
            answer.sequence.streamed = streamed
            answer.listen(self._inbox.listener(choice))
        engine.submit(self.answers, reservation)
        self._cancel_when_dropped = weakref.finalize(self, _cancel, engine, self.answers)
        self._cancel_when_dropped.atexit = False

    @property
    def ended(self) -> bool:
        """Whether the last piece of every answer was read."""
        return not self._open

    def next_piece(self, timeout: float | None = None) -> TimedDelta | None:
        """The next piece of any answer; None when all have ended, or after `timeout` seconds without one."""
        return self._taken(self._inbox.get(timeout)) if self._open else None

    async def next_piece_async(self, timeout: float | None = None) -> TimedDelta | None:
        """As `next_piece`, in an event loop."""
        return self._taken(await self._inbox.get_async(timeout)) if self._open else None

    def deltas(self) -> list[OutputDelta]:
        """Wait for all answers to end, and return the unread deltas; a failed answer has its error in `answers`."""
        found = []
        while (piece := self.next_piece()) is not None:
            found.append(piece.delta)
        return found

    async def deltas_async(self) -> list[OutputDelta]:
        """As `deltas`, in an event loop."""
        found = []
        while (piece := await self.next_piece_async()) is not None:
            found.append(piece.delta)
        return found

    def close(self) -> None:
        """Cancel what has not ended; more calls do nothing."""
        self._open.clear()
        self._cancel_when_dropped()

    cancel = close

    async def aclose(self) -> None:
        """As `close`."""
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> OutputDelta:
        piece = self.next_piece()
        if piece is None:
            raise StopIteration
        return self._checked(piece)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> OutputDelta:
        try:
            piece = await self.next_piece_async()
        except BaseException:  # the reading task was cancelled: nobody reads any more
            self.close()
            raise
        if piece is None:
            raise StopAsyncIteration
        return self._checked(piece)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _taken(self, piece: TimedDelta | None) -> TimedDelta | None:
        if piece is not None and piece.delta.finish_reason is not None:
            self._open.discard(piece.choice)
        if piece is not None and self._readers:
            piece = replace(piece, delta=self._readers[piece.choice](piece.delta))
        return piece

    def _checked(self, piece: TimedDelta) -> OutputDelta:
        if piece.delta.finish_reason != "error":
            return piece.delta
        self.close()
        raise self.answers[piece.choice].error or ExecutionError("The request failed.")


class _Inbox:
    """Passes pieces from the engine's thread to one reader. It holds no handle, so that a handle can be dropped."""

    def __init__(self, streamed: bool, observer: Observer | None) -> None:
        self._streamed = streamed
        self._observer = observer
        self._pieces: queue.SimpleQueue[TimedDelta] = queue.SimpleQueue()
        self._wake: Callable[[], object] | None = None
        self._arrived: asyncio.Event | None = None

    def listener(self, choice: int) -> Callable[[RequestState, OutputDelta], None]:
        """What the engine calls with each delta of a choice."""

        def listen(_: RequestState, delta: OutputDelta) -> None:
            piece = TimedDelta(choice, delta, time.monotonic())
            self._pieces.put(piece)
            if self._observer is not None:
                self._observer(piece)
            if self._wake is not None and (self._streamed or delta.finish_reason is not None):
                self._wake()

        return listen

    def get(self, timeout: float | None) -> TimedDelta | None:
        """The next piece, None after `timeout` seconds."""
        try:
            return self._pieces.get(timeout=timeout)
        except queue.Empty:
            return None

    async def get_async(self, timeout: float | None) -> TimedDelta | None:
        """As `get`, in the running event loop."""
        import asyncio

        arrived = self._arrived = self._arrived or self._watched()
        while True:
            with suppress(queue.Empty):
                return self._pieces.get_nowait()
            arrived.clear()
            if not self._pieces.empty():  # the engine's thread came between
                continue
            try:
                async with asyncio.timeout(timeout):
                    await arrived.wait()
            except TimeoutError:
                return None

    def _watched(self) -> "asyncio.Event":
        """An event that is set from now on whenever a piece should wake the reader."""
        import asyncio

        arrived, loop = asyncio.Event(), asyncio.get_running_loop()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody reads any more
                loop.call_soon_threadsafe(arrived.set)

        self._wake = wake
        return arrived


def _cancel(engine: "Engine", answers: Sequence[RequestState]) -> None:
    for answer in answers:
        if answer.timings.finished is None:
            engine.cancel(answer)
