"""Stopping a run from another thread."""

import threading
from typing import Any

from ..errors import ExecutionError
from .runner_protocol import StepInterrupted
from .session import onnxruntime


class Interruptible:
    """`with` this around a run; `interrupt` from another thread then stops exactly that run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._options: Any = None

    def __enter__(self) -> Any:
        with self._lock:
            self._options = onnxruntime().RunOptions()
            return self._options

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        with self._lock:
            options, self._options = self._options, None
        if isinstance(error, ExecutionError) and options.terminate:
            raise StepInterrupted from error

    def interrupt(self) -> None:
        with self._lock:
            if self._options is not None:
                self._options.terminate = True
