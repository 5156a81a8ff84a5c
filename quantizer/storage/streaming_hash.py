"""The hash of a file that is still being written: what follows the writer finds its bytes in the page cache."""

import hashlib
import os
import queue
import threading
from pathlib import Path
from types import TracebackType

from runtime.errors import BundleError

_CHUNK = 1 << 22


class StreamingHash:
    """SHA-256 of a growing file, by a thread that `advance` tells how far it may read; known when the block is left.

    >>> with StreamingHash(path) as follower:  # doctest: +SKIP
    ...     follower.advance(file.write(array))
    >>> follower.sha256  # doctest: +SKIP
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ends: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._digest, self._position = hashlib.sha256(), 0
        self._error: OSError | None = None
        self._thread = threading.Thread(target=self._follow, name="onnxlm-follow", daemon=True)

    @property
    def sha256(self) -> str:
        """Hexadecimal digits.

        Raises:
            BundleError: the file could not be read.
        """
        if self._error is not None:
            raise BundleError(f"{self._path}: cannot be read ({self._error.strerror}).") from self._error
        return self._digest.hexdigest()

    def advance(self, end: int) -> None:
        """The first `end` bytes are written."""
        self._ends.put(end)

    def __enter__(self) -> "StreamingHash":
        self._path.touch()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ends.put(None)
        self._thread.join()

    def _follow(self) -> None:
        try:
            with self._path.open("rb") as file:
                while (end := self._ends.get()) is not None:
                    self._read_until(file.fileno(), end)
        except OSError as error:
            self._error = error

    def _read_until(self, file: int, end: int) -> None:
        while (missing := end - self._position) > 0:
            chunk = os.read(file, min(missing, _CHUNK))
            if not chunk:
                raise OSError(0, "it ended while it was written")
            self._digest.update(chunk)
            self._position += len(chunk)
