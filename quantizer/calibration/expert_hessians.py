"""Hessians of experts, one at a time, from what the experts of a layer read during calibration.

What is kept on disk is the input of the layer's experts, `[tokens, H]`, not E Hessians `[H, H]`, which for many
experts would be larger than the model. An expert's Hessian counts each of its tokens by the square of the weight that
its output is mixed in with: that is how much its errors count. One that saw too few tokens borrows from all others.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..graph.experts import Experts
from ..storage.matrix import Floats
from .routed_tokens import IntArray, RoutedTokens

_FEW = 1 / 8  # tokens per input of a matrix: GPTQ gains most of what it can gain with as many, nothing with 1/64


@dataclass(frozen=True)
class Seen:
    """What the experts of one layer read during calibration.

    Attributes:
        experts: of the bundle's prefill graph.
        text: what they read of the calibration text.
        drawn: what those read that lacked tokens, of further text.
    """

    experts: Experts
    text: RoutedTokens
    drawn: tuple[RoutedTokens, ...] = ()

    def tokens(self) -> npt.NDArray[np.int64]:
        """How many tokens each expert saw, `[E]`."""
        return np.array([self._own(expert) for expert in range(self.experts.sites[0].count)], np.int64)

    def lacking(self) -> list[int]:
        """Experts that saw too few for a Hessian of their own for each of their matrices."""
        fewest = max(_fewest(site.inputs) for site in self.experts.sites)
        return [expert for expert, count in enumerate(self.tokens()) if count < fewest]

    def rows(self, weight: str, expert: int) -> Floats | None:
        """What one matrix of a stack reads, weighted, `[its tokens and those that it borrows, K]`; None where that is
        not known.
        """
        site = next(site for site in self.experts.sites if site.weight == weight)
        parts = [(part, *part.of(expert)) for part in (self.text, *self.drawn)]
        parts.append((self.text, *self._borrowed(expert, site.inputs)))
        x = np.concatenate([part.x(tokens) for part, tokens, _ in parts])
        if weight == self.experts.gate_up.name:
            x *= np.concatenate([mixing for *_, mixing in parts])[:, None]
            return x
        inner = self.experts.inner(x, expert)
        if inner is not None:
            inner *= np.concatenate([part.shares(tokens, mixing) for part, tokens, mixing in parts])[:, None]
        return inner

    def weight_of(self, expert: int, inputs: int) -> int:
        """How many tokens the rows of a matrix with `inputs` inputs count for: its own, or the fewest that will do."""
        return max(self._own(expert), _fewest(inputs))

    def _own(self, expert: int) -> int:
        return sum(len(part.of(expert)[0]) for part in (self.text, *self.drawn))

    def _borrowed(self, expert: int, inputs: int) -> tuple[IntArray, Floats]:
        """Tokens of the whole layer, and their weights, that stand in for those which an expert lacks.

        Together they weigh as much as the missing ones: the Hessian shrinks towards that of all tokens.
        """
        lacking = _fewest(inputs) - self._own(expert)
        if lacking <= 0:
            return np.zeros(0, np.int64), np.zeros(0, np.float32)
        own = np.concatenate([part.of(expert)[1] for part in (self.text, *self.drawn)])
        square = float(np.mean(np.square(own))) if len(own) else self.text.mean_square()
        total = self.text.total
        tokens = np.unique(np.linspace(0, total - 1, min(total, inputs)).astype(np.int64))
        return tokens, np.full(len(tokens), math.sqrt(square * lacking / len(tokens)), np.float32)


class ExpertHessians:
    """Hessians of stacks of matrices, by weight name.

    Args:
        seen: by weight name.
    """

    def __init__(self, seen: Mapping[str, Seen]) -> None:
        self._seen = seen

    @property
    def seen(self) -> list[Seen]:
        """Of each layer that has experts."""
        return list({seen.experts.name: seen for seen in self._seen.values()}.values())

    def read(self, weight: str, expert: int) -> Floats | None:
        """`[K, K]` of one expert's inputs; None where the layer saw too few tokens."""
        seen = self._seen.get(weight)
        rows = seen.rows(weight, expert) if seen else None
        if seen is None or rows is None or seen.text.total < _fewest(rows.shape[1]):
            return None
        hessian: Floats = rows.T @ rows / np.float32(seen.weight_of(expert, rows.shape[1]))
        return hessian

    def rare(self) -> dict[str, list[int]]:
        """Experts that saw too few tokens for Hessians of their own, by module."""
        rare = {seen.experts.name: seen.lacking() for seen in self._seen.values()}
        return {name: experts for name, experts in rare.items() if experts}


def _fewest(inputs: int) -> int:
    return math.ceil(_FEW * inputs)
