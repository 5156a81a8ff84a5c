"""How one matrix is stored: bits, group size, grid and residual-coded channels."""

from dataclasses import dataclass

GROUP_SIZES = (16, 32, 64, 128, 256)
BITS = (4, 8)
SCALE_BITS = (8, 16)


@dataclass(frozen=True)
class Scheme:
    """How a matrix `[N, K]` is stored: each row in groups of `group_size` inputs, each group with its own scale.

    Symmetric groups have no zero point: their grid is `-2**(bits-1) … 2**(bits-1)-1` times the scale, which may be
    negative, so that the group's largest weight sits on the longer side. Asymmetric groups store a zero point each.
    Scales of 8 bits are multiples of a step that each row has; 16 stands for a float type, whichever suits.
    """

    bits: int
    group_size: int = 32
    symmetric: bool = False
    scale_bits: int = 16

    def __post_init__(self) -> None:
        if self.bits not in BITS:
            raise ValueError(f"bits: {self.bits} is not supported; choose one of {', '.join(map(str, BITS))}")
        if self.group_size not in GROUP_SIZES:
            accepted = ", ".join(map(str, GROUP_SIZES))
            raise ValueError(f"group_size: {self.group_size} is not supported; choose one of {accepted}")
        if self.scale_bits not in SCALE_BITS:
            raise ValueError(f"scale_bits: {self.scale_bits} is not supported; choose 8 or 16")

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
class QuantConfig:
    """How one matrix is stored.

    Attributes:
        scheme: of its codes.
        residual_channels: inputs that get a second code for what the first one loses; a multiple of the group size.
    """

    scheme: Scheme
    residual_channels: int = 0

    def __post_init__(self) -> None:
        if self.residual_channels < 0 or self.residual_channels % self.scheme.group_size:
            raise ValueError(
                f"residual_channels: {self.residual_channels} is not a multiple of the group size "
                f"{self.scheme.group_size}; the second codes fill whole groups"
            )
