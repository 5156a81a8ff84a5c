"""Tokens that the experts of one layer read, and where each went: files of a run of calibration."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..graph.experts import Experts
from ..storage.matrix import Floats
from .half import as_stored

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RoutedTokens:
    """Of one text.

    Attributes:
        experts: of the bundle's prefill graph.
        files: of x `[…, H]`, routing `[…, E]`, and mean squares `[…, 1]` if known; tokens lie in the same order.
        only: experts of which all tokens are here; None for all of them.
    """

    experts: Experts
    files: tuple[Path, ...]
    only: frozenset[int] | None = None

    def of(self, expert: int) -> tuple[IntArray, Floats]:
        """An expert's tokens, and the weights that its outputs are mixed in with; none where not all are here."""
        if self.only is not None and expert not in self.only:
            return np.zeros(0, np.int64), np.zeros(0, np.float32)
        return self._routes[expert]

    def x(self, tokens: IntArray) -> Floats:
        """What experts read, `[tokens, H]`."""
        stored = np.load(self.files[0], mmap_mode="r")
        return as_stored(stored.reshape(-1, stored.shape[-1])[tokens])

    def shares(self, tokens: IntArray, mixing: Floats) -> Floats:
        """An expert writes to the residual stream: see `hessian_graph`."""
        if len(self.files) < 3:
            return mixing
        squares = np.load(self.files[2], mmap_mode="r").reshape(-1)[tokens]
        shares: Floats = mixing / np.sqrt(np.maximum(squares, np.float32(1e-30)))
        return shares

    def mean_square(self) -> float:
        """Of all weights that outputs are mixed in with."""
        mixing = np.concatenate([weights for _, weights in self._routes])
        return float(np.mean(np.square(mixing))) if len(mixing) else 0.0

    @cached_property
    def total(self) -> int:
        """Tokens, however they are routed."""
        return int(np.prod(np.load(self.files[1], mmap_mode="r").shape[:-1]))

    @cached_property
    def _routes(self) -> list[tuple[IntArray, Floats]]:
        """Of each expert; computed once a layer."""
        routing = np.load(self.files[1])
        mixing = np.ascontiguousarray(self.experts.mixing(routing.reshape(-1, routing.shape[-1])).T)
        return [(chosen := np.flatnonzero(weights), weights[chosen]) for weights in mixing]


class RoutedParts:
    """The tokens of some experts, gathered from batch after batch.

    Args:
        experts: of the layer.
        wanted: those whose tokens are kept.
    """

    def __init__(self, experts: Experts, wanted: Sequence[int]) -> None:
        self._experts = experts
        self._wanted = list(wanted)
        self._parts: list[list[Floats]] = []

    def add(self, values: Sequence[Floats]) -> None:
        """x, routing and mean squares of a batch, in the order of `RoutedTokens.files`."""
        flat = [value.reshape(-1, value.shape[-1]) for value in values]
        kept = (self._experts.mixing(flat[1])[:, self._wanted] != 0).any(axis=1)
        self._parts.append([value[kept] for value in flat])

    def joined(self) -> list[Floats]:
        """The same of all batches: x `[1, tokens, H]`, routing `[tokens, E]`, mean squares `[tokens, 1]`."""
        x, *others = (np.concatenate(parts) for parts in zip(*self._parts, strict=True))
        return [x[None], *others]
