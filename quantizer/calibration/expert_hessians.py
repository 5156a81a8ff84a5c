"""Hessians of experts, one at a time, from what the experts of a layer read during calibration.

What is kept on disk is the input of the layer's experts, `[tokens, H]`, not E Hessians `[H, H]`, which for many
experts would be larger than the model. An expert's Hessian counts each of its tokens by the square of the weight that
its output is mixed in with: that is how much its errors count. One that saw too few tokens borrows from all others.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..graph.experts import Experts
from ..storage.matrix import Floats
from .half import as_stored

_FEW = 1 / 8  # tokens per input of a matrix: GPTQ gains most of what it can gain with as many, nothing with 1/64


@dataclass(frozen=True)
class Seen:
    """What the experts of one layer read during calibration.

    Attributes:
        experts: of the bundle's prefill graph.
        files: of x `[chunks, …, H]`, routing `[chunks, tokens, E]`, and mean squares `[chunks, tokens, 1]` if known.
    """

    experts: Experts
    files: tuple[Path, ...]

    def tokens(self) -> npt.NDArray[np.int64]:
        """How many tokens each expert saw, `[E]`."""
        return np.array([len(chosen) for chosen, _ in self._routes], np.int64)

    def rows(self, weight: str, expert: int) -> Floats | None:
        """What one matrix of a stack reads, weighted, `[its tokens and those that it borrows, K]`; None where that is
        not known.
        """
        site = next(site for site in self.experts.sites if site.weight == weight)
        chosen, mixing = self._routes[expert]
        borrowed, weights = self._borrowed(expert, site.inputs)
        chosen, mixing = np.concatenate([chosen, borrowed]), np.concatenate([mixing, weights])
        stored = np.load(self.files[0], mmap_mode="r")
        x = as_stored(stored.reshape(-1, stored.shape[-1])[chosen])
        if weight == self.experts.gate_up.name:
            return x * mixing[:, None]
        inner = self.experts.inner(x, expert)
        return None if inner is None else inner * self._shares(chosen, mixing)[:, None]

    def weight_of(self, expert: int, inputs: int) -> int:
        """How many tokens the rows of a matrix with `inputs` inputs count for: its own, or the fewest that will do."""
        return max(len(self._routes[expert][0]), self._fewest(inputs))

    def _borrowed(self, expert: int, inputs: int) -> tuple[npt.NDArray[np.int64], Floats]:
        """Tokens of the whole layer, and their weights, that stand in for those which an expert lacks.

        Together they weigh as much as the missing ones: the Hessian shrinks towards that of all tokens.
        """
        own, mixing = self._routes[expert]
        lacking = self._fewest(inputs) - len(own)
        if lacking <= 0:
            return np.zeros(0, np.int64), np.zeros(0, np.float32)
        if not len(own):
            mixing = np.concatenate([weights for _, weights in self._routes])
        drawn = np.unique(np.linspace(0, self.total - 1, min(self.total, inputs)).astype(np.int64))
        each = np.sqrt(np.mean(np.square(mixing)) * lacking / len(drawn))
        return drawn, np.full(len(drawn), each, np.float32)

    def _fewest(self, inputs: int) -> int:
        return math.ceil(_FEW * inputs)

    def _shares(self, chosen: npt.NDArray[np.int64], mixing: Floats) -> Floats:
        """An expert writes to the residual stream: see `hessian_graph`."""
        if len(self.files) < 3:
            return mixing
        squares = np.load(self.files[2], mmap_mode="r").reshape(-1)[chosen]
        shares: Floats = mixing / np.sqrt(np.maximum(squares, np.float32(1e-30)))
        return shares

    @cached_property
    def total(self) -> int:
        """Tokens of the layer."""
        return int(np.prod(np.load(self.files[1], mmap_mode="r").shape[:-1]))

    @cached_property
    def _routes(self) -> list[tuple[npt.NDArray[np.int64], Floats]]:
        """The tokens of each expert, and the weights that its outputs are mixed in with."""
        mixing = np.ascontiguousarray(self.experts.mixing(_flat(np.load(self.files[1]))).T)
        return [(chosen := np.flatnonzero(weights), weights[chosen]) for weights in mixing]


class ExpertHessians:
    """Hessians of stacks of matrices, by weight name.

    Args:
        seen: by weight name.
    """

    def __init__(self, seen: Mapping[str, Seen]) -> None:
        self._seen = seen

    def read(self, weight: str, expert: int) -> Floats | None:
        """`[K, K]` of one expert's inputs; None where the layer saw too few tokens."""
        seen = self._seen.get(weight)
        rows = seen.rows(weight, expert) if seen else None
        if seen is None or rows is None or _too_few(seen.total, rows.shape[1]):
            return None
        hessian: Floats = rows.T @ rows / np.float32(seen.weight_of(expert, rows.shape[1]))
        return hessian

    def rare(self) -> dict[str, list[int]]:
        """Experts that saw too few tokens for a Hessian of their own, by module."""
        found = {}
        for seen in self._seen.values():
            inputs = min(site.inputs for site in seen.experts.sites)
            rare = [expert for expert, count in enumerate(seen.tokens()) if _too_few(int(count), inputs)]
            found[seen.experts.name] = rare
        return {name: rare for name, rare in found.items() if rare}


def _too_few(tokens: int, inputs: int) -> bool:
    return tokens < _FEW * inputs


def _flat(array: Floats) -> Floats:
    return array.reshape(-1, array.shape[-1])
