"""A Hessian with its factor and statistics, computed once for all matrices and slices that read the same inputs."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..storage.matrix import Floats
from .array_module import ArrayModule, array_module
from .factor import conditional_variances, damping


@dataclass(frozen=True)
class InputStatistics:
    """What an algorithm may know of a matrix's inputs.

    Attributes:
        hessian: `[K, K]`; None where nothing is known of them.
        importance: `[K]`, how much each counts when a grid is searched.
        polishing: rounds of refinement that are wanted.
    """

    hessian: "Hessian | None"
    importance: Floats
    polishing: int = 0


class Hessian:
    """H = XᵀX / tokens, X the inputs `[tokens, K]` of one or more matrices; safe to use from several threads.

    Args:
        values: float32 `[K, K]`.
        arrays: where products run; by default as the environment says.
    """

    def __init__(self, values: Floats, arrays: ArrayModule | None = None) -> None:
        self.values = np.ascontiguousarray(values, np.float32)
        self.arrays = arrays or array_module()
        self._lock = threading.RLock()
        self._known: dict[str, Any] = {}

    @property
    def importance(self) -> Floats:
        """The damped diagonal, `[K]`: how much each input counts when a grid is searched."""
        diagonal = self.values.diagonal()
        return (diagonal.astype(np.float64) + damping(diagonal)).astype(np.float32)

    @property
    def factor(self) -> Any:
        """R `[K, K]`, upper triangular, R Rᵀ = damped H; an array of `arrays`."""
        return self._once("factor", lambda: self.arrays.upper_factor(self.values))

    @property
    def conditional_variances(self) -> Floats:
        """1 / diag(H⁻¹), damped, `[K]`: of each input, what all others do not tell."""
        variances: Floats = self._once(
            "variances", lambda: conditional_variances(np.asarray(self.arrays.read(self.factor)))
        )
        return variances

    @property
    def held(self) -> Any:
        """H as an array of `arrays`."""
        return self._once("held", lambda: self.arrays.hold(self.values))

    def _once(self, name: str, make: Callable[[], Any]) -> Any:
        with self._lock:
            if name not in self._known:
                self._known[name] = make()
            return self._known[name]
