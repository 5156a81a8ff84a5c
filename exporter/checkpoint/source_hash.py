"""The hash of the source, computed while its weights are exported: nobody waits for it, and the pages are read once."""

import contextlib
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import Checkpoint


class SourceHash:
    """`checkpoint.sha256`, begun now; a daemon thread, so that Ctrl-C and errors do not wait for it."""

    def __init__(self, checkpoint: "Checkpoint") -> None:
        self._checkpoint = checkpoint
        self._thread = threading.Thread(target=self._hash, name="onnxlm-hash", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until the checkpoint knows its hash."""
        self._thread.join()

    def _hash(self) -> None:
        with contextlib.suppress(OSError):  # whoever reads the property next gets the error
            _ = self._checkpoint.sha256  # which keeps it
