"""The type that a matrix's scales are stored in, found while the matrix is read once.

It depends on the largest weight of all, which is known in the end only. The first rows that are read nearly always tell
it; where later ones belie them, what was written is taken back and the matrix is read again.
"""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from quantizer.storage.storing import scale_type_of

if TYPE_CHECKING:
    import onnx_ir as ir

    from quantizer.storage.scheme import Scheme

T = TypeVar("T")


class ScaleKind:
    """What the parts that were read so far say; asked from several threads.

    Args:
        activations: the type of the graph's floats: what scales have, too, where it is not float32.
        scheme: of the codes.
        largest: absolute weight that is known, or None.
    """

    def __init__(self, activations: "ir.DataType", scheme: "Scheme", largest: float | None = None) -> None:
        self._fixed = None if activations.numpy() == np.float32 else activations.numpy()
        self._scheme = scheme
        self._lock = threading.Lock()
        self._largest = largest

    @property
    def chosen(self) -> npt.DTypeLike:
        """The type; one at least must have asked `of`."""
        if self._fixed is not None:
            return self._fixed
        assert self._largest is not None
        return scale_type_of(self._largest, self._scheme)

    @property
    def largest(self) -> float | None:
        """Absolute weight so far."""
        return self._largest

    def of(self, values: npt.NDArray[np.float32]) -> npt.DTypeLike:
        """The type of the scales of these weights.

        Raises:
            BeliedError: it is another than that of the weights before.
        """
        if self._fixed is not None:
            return self._fixed
        here = float(max(values.max(initial=0.0), -values.min(initial=0.0)))
        with self._lock:
            before = None if self._largest is None else self.chosen
            self._largest = max(here, self._largest or 0.0)
            if before not in (None, self.chosen):
                raise BeliedError
            return self.chosen


class BeliedError(Exception):
    """Scales must have another type than what is written; never leaves `settled`."""


def settled(activations: "ir.DataType", scheme: "Scheme", store: Callable[[ScaleKind], T]) -> T:
    """What `store` returns, begun anew where the type of scales turns out to be another one."""
    kind = ScaleKind(activations, scheme)
    while True:
        try:
            return store(kind)
        except BeliedError:
            kind = ScaleKind(activations, scheme, kind.largest)
