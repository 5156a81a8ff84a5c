"""Buffers that a thread uses again and again: new arrays for each step cost more in page faults than in arithmetic."""

import math
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

_LOCAL = threading.local()


def scratch(name: str, shape: tuple[int, ...], dtype: npt.DTypeLike = np.float32) -> npt.NDArray[Any]:
    """An array with any contents, valid until this thread asks for the same `name` again."""
    buffers: dict[str, npt.NDArray[Any]] = _LOCAL.__dict__.setdefault("buffers", {})
    size, kind = math.prod(shape), np.dtype(dtype)
    buffer = buffers.get(name)
    if buffer is None or buffer.dtype != kind or buffer.size < size:
        buffer = buffers[name] = np.empty(size, kind)
    return buffer[:size].reshape(shape)
