"""Hessians of experts, one at a time, from what the experts of a layer read during calibration.

What is kept on disk is the input of the layer's experts, `[tokens, H]`, not E Hessians `[H, H]`, which for many
experts would be larger than the model. An expert's Gram counts each of its tokens by the square of the weight that its
output is mixed in with: that is how much its errors count.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..graph.experts import Experts
from ..storage.matrix import Floats

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
        return np.array(np.count_nonzero(self._mixing(), axis=0), np.int64)

    def rows(self, weight: str, expert: int) -> Floats | None:
        """What one matrix of a stack reads, `[its tokens, K]`, weighted; None where that is not known."""
        mixing = self._mixing()[:, expert]
        chosen = np.flatnonzero(mixing)
        x = _flat(np.load(self.files[0], mmap_mode="r"))[chosen].astype(np.float32)
        if weight == self.experts.gate_up.name:
            return x * mixing[chosen, None]
        inner = self.experts.inner(x, expert)
        return None if inner is None else inner * self._shares(mixing)[chosen, None]

    def _shares(self, mixing: Floats) -> Floats:
        """An expert writes to the residual stream: see `gram_graph`."""
        if len(self.files) < 3:
            return mixing
        squares = np.load(self.files[2]).reshape(-1)
        shares: Floats = mixing / np.sqrt(np.maximum(squares, np.float32(1e-30)))
        return shares

    def _mixing(self) -> Floats:
        return self.experts.mixing(_flat(np.load(self.files[1])))


class ExpertHessians:
    """Hessians of stacks of matrices, by weight name.

    Args:
        seen: by weight name.
    """

    def __init__(self, seen: Mapping[str, Seen]) -> None:
        self._seen = seen

    def read(self, weight: str, expert: int) -> Floats | None:
        """`[K, K]` of one expert's inputs; None where it saw too few tokens."""
        rows = self._seen[weight].rows(weight, expert) if weight in self._seen else None
        if rows is None or _too_few(len(rows), rows.shape[1]):
            return None
        hessian: Floats = rows.T @ rows / np.float32(len(rows))
        return hessian

    def rare(self) -> dict[str, list[int]]:
        """Experts whose matrices are quantized without a Hessian, by module."""
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
