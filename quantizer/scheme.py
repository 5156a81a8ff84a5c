"""What is stored: bits, group size and grid of one matrix, and the whole recipe of one run."""

from dataclasses import dataclass
from typing import Literal

GROUP_SIZES = (16, 32, 64, 128, 256)
BITS = (4, 8)


@dataclass(frozen=True)
class Scheme:
    """How a matrix `[N, K]` is stored: each row in groups of `group_size` inputs, each group with its own scale.

    Symmetric groups have no zero point: their grid is `-2**(bits-1) … 2**(bits-1)-1` times the scale, which may be
    negative, so that the group's largest weight sits on the longer side. Asymmetric groups store a zero point each.
    """

    bits: int
    group_size: int = 32
    symmetric: bool = False

    def __post_init__(self) -> None:
        if self.bits not in BITS:
            raise ValueError(f"bits: {self.bits} is not supported; choose one of {', '.join(map(str, BITS))}")
        if self.group_size not in GROUP_SIZES:
            accepted = ", ".join(map(str, GROUP_SIZES))
            raise ValueError(f"group_size: {self.group_size} is not supported; choose one of {accepted}")

    @property
    def levels(self) -> int:
        """Number of codes of the grid, less one: the largest code."""
        return int(2**self.bits) - 1

    @property
    def middle(self) -> int:
        """The zero point of symmetric groups, and of ONNX Runtime where none is stored."""
        return int(2 ** (self.bits - 1))

    def groups(self, inputs: int) -> int:
        """Groups of one row of `inputs` weights; the last one may be short."""
        return -(-inputs // self.group_size)


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the quantized bytes; it is written into the manifest and reproduces them.

    Attributes:
        linear: how the weight matrices of the layers (and an untied head, unless `table` covers it) are stored.
        table: how the token table (embedding, tied or untied head) is stored.
        exclude: patterns (`*`, `?`) of matrices that stay as they are.
        method: how codes are chosen.
    """

    linear: Scheme
    table: Scheme
    exclude: tuple[str, ...] = ()
    method: Literal["rtn"] = "rtn"
