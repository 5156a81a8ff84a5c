"""How long work tells what it does: a bar on a terminal, else a line per phase and one every half minute, on stderr."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

Progress = Callable[[str, int, int], None]  # phase, work done, total work
# The phase, done, total, seconds of the phase so far → seconds until all phases are over, None where nobody knows.
Left = Callable[[str, int, int, float], float | None]
_EVERY = 30.0  # seconds between two lines of one phase


@contextmanager
def progress(doing: str, *, quiet: bool | None = None, left: Left | None = None) -> Iterator[Progress]:
    """A function to call with (phase, done, total); total 0 means unknown. `--quiet` silences it.

    `left` knows what follows a phase.
    """
    if is_quiet() if quiet is None else quiet:
        yield _nothing
    elif sys.stderr.isatty():
        with _bar(doing, left or _unknown) as show:
            yield show
    else:
        with _ticking(PhaseLines(lambda line: click.echo(line, err=True), left=left or _unknown)) as lines:
            yield lines


class PhaseLines:
    """Progress as lines of text, for logs and pipes.

    Args:
        write: takes one line.
        clock: seconds, monotonic.
        every: seconds between two lines of one phase.
        left: seconds until all phases are over.
    """

    def __init__(
        self,
        write: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        every: float = _EVERY,
        left: Left | None = None,
    ) -> None:
        self._write = write
        self._clock = clock
        self._every = every
        self._left = left or _unknown
        self._phase: str | None = None
        self._began = self._said = 0.0
        self._last = (0, 0)
        self._lock = threading.Lock()

    def __call__(self, phase: str, done: int, total: int) -> None:
        """Say a phase when it begins, and how far it is when nothing was said for a while."""
        with self._lock:
            self._tell(phase, done, total)

    def tick(self) -> None:
        """Say how far the phase is, if nothing was said for a while: also where a phase is one long step."""
        with self._lock:
            if self._phase is not None:
                self._tell(self._phase, *self._last)

    def _tell(self, phase: str, done: int, total: int) -> None:
        now = self._clock()
        self._last = (done, total)
        if phase != self._phase:
            self._phase, self._began, self._said = phase, now, now
            self._write(phase)
        elif now - self._said >= self._every:
            self._said = now
            self._write(f"{phase}: {self._share(done, total, now - self._began)}{self._in_all(now - self._began)}")

    def _share(self, done: int, total: int, seconds: float) -> str:
        if not 0 < done <= total:
            return f"{seconds:.0f} s so far"
        return f"{done / total:.0%}, about {seconds * (total - done) / done:.0f} s left"

    def _in_all(self, seconds: float) -> str:
        left = self._left(self._phase or "", *self._last, seconds)
        return "" if left is None else f"; about {_minutes(left)} in all"


def _unknown(phase: str, done: int, total: int, seconds: float) -> None:  # noqa: ARG001  # a Left that knows nothing
    return


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


@contextmanager
def _ticking(lines: PhaseLines) -> Iterator[PhaseLines]:
    ended = threading.Event()

    def tick() -> None:
        while not ended.wait(1):
            lines.tick()

    thread = threading.Thread(target=tick, name="onnxlm-progress", daemon=True)
    thread.start()
    try:
        yield lines
    finally:
        ended.set()


@contextmanager
def _bar(doing: str, left: Left) -> Iterator[Progress]:
    """A bar that pulses until the amount of work is known, and vanishes when the work is done."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        SpinnerColumn,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    times = (TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("{task.fields[left]}"))
    with Progress(*columns, *times, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(doing, total=None, left="")
        phase, began = doing, time.monotonic()

        def show(now: str, done: int, total: int) -> None:
            nonlocal phase, began
            if now != phase:  # the remaining time is that of a phase
                phase, began = now, time.monotonic()
                bar.reset(task, description=now, total=None)
            seconds = left(now, done, total, time.monotonic() - began)
            words = "" if seconds is None else f"{_minutes(seconds)} in all"
            bar.update(task, completed=done, total=total if done else None, left=words)

        yield show


def _nothing(phase: str, done: int, total: int) -> None:  # noqa: ARG001  # a Progress that shows nothing
    return


def is_quiet() -> bool:
    """Whether the command was called with --quiet."""
    context = click.get_current_context(silent=True)
    return bool(context and context.find_root().meta.get("onnxlm.quiet"))
