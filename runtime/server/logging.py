"""Writing the log from a thread of its own: a slow or blocked stderr must not hold up the event loop."""

import logging
import threading
from collections import deque
from typing import TextIO

_MOST_LINES = 10_000  # waiting; more are dropped, and counted
_EVERY = 0.05  # seconds between two writes: a thread that wakes for each line takes the interpreter from the others
_CLOSE_SECONDS = 5.0


class LogThread(logging.Handler):
    """Writes what is logged to a stream, all lines since the last time at once. What waits at the end is still written.

    Args:
        stream: takes the lines.
        most: lines that may wait.
    """

    def __init__(self, stream: TextIO, most: int = _MOST_LINES) -> None:
        super().__init__()
        self._stream = stream
        self._most = most
        self._waiting: deque[logging.LogRecord] = deque()
        self._dropped = 0
        self._some = threading.Event()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="onnxlm-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Let the record wait its turn, or drop it if too many do."""
        if len(self._waiting) >= self._most:
            self._dropped += 1
            return
        self._waiting.append(record)
        self._some.set()

    def close(self) -> None:
        """Write what waits, for a few seconds at most; called when the process ends."""
        self._ending.set()
        self._some.set()
        self._thread.join(_CLOSE_SECONDS)  # not for ever: perhaps nobody reads the log
        super().close()

    def _run(self) -> None:
        while not self._ending.is_set():
            self._some.wait()
            self._some.clear()
            self._write()
            self._ending.wait(_EVERY)
        self._write()

    def _write(self) -> None:
        records = [self._waiting.popleft() for _ in range(len(self._waiting))]
        if self._dropped:
            records.append(_dropped(self._dropped))
            self._dropped = 0
        if not records:
            return
        try:
            self._stream.write("".join(f"{self.format(record)}\n" for record in records))
            self._stream.flush()
        except Exception:  # noqa: BLE001  # a closed pipe, or a record that cannot be shown: the server goes on
            self.handleError(records[-1])


def _dropped(count: int) -> logging.LogRecord:
    words = "%d lines of the log were dropped: nobody read them in time"
    return logging.LogRecord("onnxlm.server", logging.WARNING, __file__, 0, words, (count,), None)
