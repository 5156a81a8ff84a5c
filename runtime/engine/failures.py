"""What becomes of whatever an executor raises: an ExecutionError that says what was being done."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import ExecutionError, OnnxlmError
from ..ort.runner_protocol import StepInterrupted

_log = logging.getLogger("onnxlm.engine")


@contextmanager
def execution_errors(doing: str) -> Iterator[None]:
    """Turn any exception but StepInterrupted into an ExecutionError about `doing`; a foreign one is logged whole.

    Every call of the executor stands inside this: in a step, when slots are copied or given back, and when prefixes are
    read or written.
    """
    try:
        yield
    except (ExecutionError, StepInterrupted):
        raise
    except Exception as error:
        _log.exception("%s failed", doing)
        raise ExecutionError(f"{doing} failed: {error!r}.") from error


def as_ours(error: Exception, request: int) -> OnnxlmError:
    """The error of a request as one of ours; a foreign one is logged whole."""
    if isinstance(error, OnnxlmError):
        return error
    _log.error("request %d failed", request, exc_info=error)
    return ExecutionError(f"The request failed inside the engine: {error!r}.")
