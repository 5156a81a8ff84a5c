"""Tables of kernel costs: nanoseconds of a product with one row of activations, by bits and group size.

A decode step reads every weight once, so bytes in memory decide, whatever the file holds: on CPUs about
4 + 64 / group size bits for each 4-bit weight, as kernels keep a float scale and a float sum for each group. Tables
are measured, or derived from bytes and a bandwidth where no machine was at hand; each says which.
"""

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Literal

from runtime.bundle import json_codec
from runtime.errors import QuantizationError

TARGETS = ("avx2", "avx512", "neon", "cuda")
THIS_MACHINE = "this-machine"
FORMAT = 1


@dataclass(frozen=True)
class KernelCost:
    """One kernel: `ns_per_call` + `ns_per_weight` · weights, padding of groups counted as weights.

    Attributes:
        operator: MatMulNBits; MatMul of floats; or Repeat, the Gather and Concat in front of a product with
            residual-coded channels, whose `bits` and `group_size` are 0.
        bits: of a weight.
        group_size: weights that share a scale; 0 for floats.
        ns_per_weight: nanoseconds.
        ns_per_call: nanoseconds.
        bytes_per_weight: that a step reads, scales included.
    """

    operator: Literal["MatMulNBits", "MatMul", "GatherBlockQuantized", "Repeat"]
    bits: int
    group_size: int
    ns_per_weight: float
    ns_per_call: float
    bytes_per_weight: float

    def __post_init__(self) -> None:
        if min(self.ns_per_weight, self.ns_per_call, self.bytes_per_weight) < 0:
            raise ValueError(f"{self.operator}, {self.bits} bits: costs must not be negative")


@dataclass(frozen=True)
class CostTable:
    """The kernels of one target.

    Attributes:
        target: its name.
        source: "measured", or "derived" from bytes and bandwidth.
        processor: what was measured, or whose bandwidth is taken.
        onnxruntime: version that was measured; "" where derived.
        date: of the measurement or derivation.
        threads: that the kernels ran on; 0 where derived.
        how: in a sentence, how the figures came about.
        kernels: the costs.
    """

    target: str
    source: Literal["measured", "derived"]
    processor: str
    onnxruntime: str
    date: str
    threads: int
    how: str
    kernels: tuple[KernelCost, ...]
    format: int = FORMAT

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise ValueError(f"format: {self.format} is not known; this version reads {FORMAT}")

    def kernel(self, operator: str, bits: int = 0, group_size: int = 0) -> KernelCost:
        """The costs of one kernel.

        Raises:
            QuantizationError: the table has none for it.
        """
        for cost in self.kernels:
            if (cost.operator, cost.bits, cost.group_size) == (operator, bits, group_size):
                return cost
        raise QuantizationError(
            f"the kernel costs of {self.target!r} have no {operator} of {bits} bits in groups of {group_size}. Measure "
            "them again: onnxlm bench --kernels -o FILE"
        )

    def product(self, rows: int, inputs: int, bits: int, group_size: int) -> float:
        """Nanoseconds of one product with packed weights `[rows, inputs]`, `inputs` whole groups."""
        cost = self.kernel("MatMulNBits", bits, group_size)
        return cost.ns_per_call + cost.ns_per_weight * rows * inputs


def read_costs(name: str) -> CostTable:
    """The table of a target that is shipped, or one in a file that `onnxlm bench --kernels -o FILE` wrote.

    Raises:
        QuantizationError: no such target or file, or no such table in it.
    """
    shipped = name in TARGETS
    path = files(__package__).joinpath("tables", f"{name}.json") if shipped else Path(name)
    if not shipped and not path.is_file():
        raise QuantizationError(
            f"for: {name!r} is neither a target ({', '.join(TARGETS)}, {THIS_MACHINE}) nor a file of kernel costs. "
            "`onnxlm bench --kernels -o costs.json` writes one."
        )
    try:
        return json_codec.decode(CostTable, json_codec.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise QuantizationError(f"{path}: not a table of kernel costs ({error}).") from error
