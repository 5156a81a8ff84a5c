"""The sizes of a model that decide what quantizing it takes, from a graph whose weights need not be there."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ..calibration.hessian_graph import hessian_inputs
from ..graph.experts import Experts, find_experts
from ..graph.quantizable import QuantizableWeight

_LAYER = re.compile(r"\.layers\.(\d+)\.")


@dataclass(frozen=True)
class Matrix:
    """Matrices `[rows, inputs]` of one initializer.

    Attributes:
        site: which, and how many are stacked.
        active: of a stack, how many a token goes through; 1 for a single matrix.
        layer: that it belongs to; None for embedding and head.
    """

    site: QuantizableWeight
    active: int
    layer: int | None

    @property
    def weights(self) -> int:
        """How many there are."""
        return self.site.rows * self.site.inputs * self.site.count

    @property
    def operations(self) -> float:
        """Of one token that goes through: a product and a sum for each weight that it meets."""
        return 2.0 * self.site.rows * self.site.inputs * self.active


@dataclass(frozen=True)
class Sizes:
    """Of one model.

    Attributes:
        matrices: that will be quantized.
        layers: how many.
        hidden: values of a token between layers.
        vocabulary: tokens that it knows.
        hessians: inputs of each distinct value that matrices read, experts aside.
        weight_bytes: of weights.bin in floating point.
        kv_bytes: of the keys and values of one token.
    """

    matrices: tuple[Matrix, ...]
    layers: int
    hidden: int
    vocabulary: int
    hessians: tuple[int, ...]
    weight_bytes: int
    kv_bytes: int

    @property
    def operations(self) -> float:
        """Of one token that goes through all layers; the head is not counted."""
        return sum(matrix.operations for matrix in self.of_layers)

    @property
    def head_operations(self) -> float:
        """Of one token whose logits are computed."""
        return 2.0 * self.hidden * self.vocabulary

    @property
    def of_layers(self) -> Sequence[Matrix]:
        """Without embedding and head."""
        return [matrix for matrix in self.matrices if matrix.site.role != "embedding"]

    @property
    def hessian_operations(self) -> float:
        """Of one token whose products with itself are summed up."""
        return sum(2.0 * inputs * inputs for inputs in self.hessians)

    @property
    def hessian_bytes(self) -> int:
        """Of all Hessians."""
        return sum(4 * inputs * inputs for inputs in self.hessians)

    @property
    def widest(self) -> int:
        """Most inputs of a matrix."""
        return max((matrix.site.inputs for matrix in self.matrices), default=0)

    @property
    def largest(self) -> int:
        """Weights of the largest matrix that is in memory at a time."""
        return max((matrix.site.rows * matrix.site.inputs for matrix in self.matrices), default=0)


def sizes_of(
    graph: ir.Graph, sites: Sequence[QuantizableWeight], vocabulary: int, kv_bytes: int, weight_bytes: int
) -> Sizes:
    """Of a prefill graph; arguments as the attributes of `Sizes`."""
    active = {name: count for experts in find_experts(graph) for name, count in _active(experts)}
    matrices = tuple(Matrix(site, active.get(site.weight, 1), _layer(site.weight)) for site in sites)
    numbers = [matrix.layer for matrix in matrices if matrix.layer is not None]
    table = next((matrix.site.inputs for matrix in matrices if matrix.site.role == "embedding"), 0)
    hidden = table or min((matrix.site.inputs for matrix in matrices), default=0)
    return Sizes(
        matrices, max(numbers, default=0) + 1, hidden, vocabulary, tuple(hessian_inputs(graph)), weight_bytes, kv_bytes
    )


def _active(experts: Experts) -> Iterator[tuple[str, int]]:
    """Dense experts compute every one for every token."""
    for site in experts.sites:
        yield site.weight, experts.first.attributes.get_int("k", 1) if experts.is_operator else site.count


def _layer(name: str) -> int | None:
    match = _LAYER.search(name)
    return int(match[1]) if match else None
