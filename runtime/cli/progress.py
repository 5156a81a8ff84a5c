"""How long work tells what it does: a bar on a terminal, else a line per phase and one every half minute, on stderr."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

Progress = Callable[[str, int, int], None]  # the phase, how much of it is done, how much there is
_EVERY = 30.0  # seconds between two lines of one phase


@contextmanager
def progress(doing: str, *, quiet: bool | None = None) -> Iterator[Progress]:
    """A function to call with (phase, done, total); total 0 means unknown. `--quiet` silences it."""
    if _is_quiet() if quiet is None else quiet:
        yield _nothing
    elif sys.stderr.isatty():
        with _bar(doing) as show:
            yield show
    else:
        with _ticking(PhaseLines(lambda line: click.echo(line, err=True))) as lines:
            yield lines


class PhaseLines:
    """Progress as lines of text, for logs and pipes.

    Args:
        write: takes one line.
        clock: seconds, monotonic.
        every: seconds between two lines of one phase.
    """

    def __init__(
        self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic, every: float = _EVERY
    ) -> None:
        self._write = write
        self._clock = clock
        self._every = every
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
            self._write(f"{phase}: {self._share(done, total, now - self._began)}")

    def _share(self, done: int, total: int, seconds: float) -> str:
        if not 0 < done <= total:
            return f"{seconds:.0f} s so far"
        return f"{done / total:.0%}, about {seconds * (total - done) / done:.0f} s left"


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
def _bar(doing: str) -> Iterator[Progress]:
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
    times = (TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, *times, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(doing, total=None)
        phase = doing

        def show(now: str, done: int, total: int) -> None:
            nonlocal phase
            if now != phase:  # the remaining time is that of a phase
                phase = now
                bar.reset(task, description=now, total=None)
            bar.update(task, completed=done, total=total if done else None)

        yield show


def _nothing(phase: str, done: int, total: int) -> None:  # noqa: ARG001  # a Progress that shows nothing
    return


def _is_quiet() -> bool:
    context = click.get_current_context(silent=True)
    return bool(context and context.find_root().meta.get("onnxlm.quiet"))
