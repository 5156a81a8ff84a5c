"""Activations in half the bytes: float16, each row over a power of two of its own, so that none is too large for it.

The scale follows the row as two more values. What is lost is a 2,048th of a value that is not tiny in its row.
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..storage.matrix import Floats

_NARROW = 16
_TOP = np.float32(2**14)  # that the largest of a row is brought to, at most


def to_half(rows: Floats) -> npt.NDArray[np.float16]:
    """`[…, H]` → float16 `[…, H + 2]`."""
    with np.errstate(invalid="ignore"):  # NaN stays NaN, and is found by those who read it
        largest = np.abs(rows).max(axis=-1, keepdims=True)
        scale = np.exp2(np.ceil(np.log2(np.maximum(largest, np.float32(1e-30)) / _TOP))).astype(np.float32)
        values = (rows / scale).astype(np.float16)
    return np.concatenate([values, scale.view(np.float16)], axis=-1)


def from_half(stored: npt.NDArray[np.float16]) -> Floats:
    """What `to_half` was given, float32 `[…, H]`."""
    scale = np.ascontiguousarray(stored[..., -2:]).view(np.float32)
    result: Floats = stored[..., :-2].astype(np.float32) * scale
    return result


def is_activation(array: npt.NDArray[Any]) -> bool:
    """`[chunks, sequence, H]` in float32. What routes tokens, `[tokens, E]`, and masks keep their type."""
    return array.dtype == np.float32 and array.ndim == 3 and array.shape[-1] >= _NARROW


def read_row(path: Path, index: int) -> npt.NDArray[Any]:
    """One row of a file of such arrays, in their own type; of all others, as they are."""
    return as_stored(np.load(path, mmap_mode="r")[index])


def as_stored(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Rows of such a file in float32, if they are activations."""
    return from_half(rows) if rows.dtype == np.float16 else rows
