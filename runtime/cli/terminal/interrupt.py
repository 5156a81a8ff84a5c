"""Ctrl-C ends a long command within two seconds, whatever it is computing.

Python sees a signal only between two of its own instructions, and a thread that computes is waited for at the end. A
second thread therefore hears of the signal from the system, gives the command a moment to end by itself, and then ends
the process: without destructors, for those of other libraries abort while their threads are at work.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from ...bundle.bundle import remove_unfinished

_GRACE = 1.0  # seconds
_INTERRUPTED = 130  # what shells report for a program that Ctrl-C ended


class Interrupted(click.ClickException):
    """Stopped by the user, who learns what is left."""

    exit_code = _INTERRUPTED

    def __init__(self, kept: str) -> None:
        super().__init__(f"interrupted; nothing was written.{kept}")
        _said.set()


_said = threading.Event()  # the message is on its way to the screen


@contextmanager
def stopping_promptly(kept: Callable[[], str] = str) -> Iterator[None]:
    """Turn Ctrl-C into `Interrupted`, within two seconds and wherever the command is.

    Args:
        kept: what the message says of work that the next attempt goes on from; begins with a space, or is empty.
    """
    watch = _Watch(kept) if threading.current_thread() is threading.main_thread() else None
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(kept()) from None  # the watch goes on: threads may keep the process from ending
    except BaseException:
        if watch:
            watch.end()
        raise
    else:
        if watch:
            watch.end()


class _Watch:
    """Reads what the system writes into a pipe when a signal comes."""

    def __init__(self, kept: Callable[[], str]) -> None:
        self._kept = kept
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        threading.Thread(target=self._run, name="onnxlm-interrupt", daemon=True).start()

    def end(self) -> None:
        """Stop watching."""
        signal.set_wakeup_fd(self._before)
        os.close(self._writer)  # the thread reads the end

    def _run(self) -> None:
        while caught := os.read(self._reader, 1):
            if caught[0] == signal.SIGINT and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                self._give_time()
        os.close(self._reader)

    def _give_time(self) -> None:
        threading.Event().wait(_GRACE)
        if not _said.is_set():
            sys.stderr.write(f"Error: {Interrupted(self._kept()).message}\n")
        sys.stderr.flush()
        remove_unfinished()
        os._exit(_INTERRUPTED)
