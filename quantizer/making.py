"""The codes of each matrix by the plan: what takes long, and is done for a few matrices beside each other."""

from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from .expert_stacks import quantize_stack
from .finished import FinishedMatrices, Made
from .matrix import Floats, QuantizedMatrix
from .method import NO_OUTLIERS, quantize_matrix
from .outliers import Index
from .packing import packed_bytes
from .plan import Plan
from .scheme import Choice
from .sites import Site
from .storing import relative_error, scale_type, scale_type_of


@dataclass(frozen=True)
class Codes:
    """A quantized matrix, or a stack of them.

    Attributes:
        matrices: one, or one for each expert.
        index: inputs that the matrix repeats as outliers.
        kind: the type of its scales.
        error: ‖W − Ŵ‖ / ‖W‖.
    """

    matrices: tuple[QuantizedMatrix, ...]
    index: Index
    kind: np.dtype[np.generic]
    error: float


class Maker:
    """Makes codes; safe to call from several threads.

    Args:
        plan: of the run.
        finished: matrices of an earlier run that was killed.
    """

    def __init__(self, plan: Plan, finished: FinishedMatrices) -> None:
        self._plan = plan
        self._finished = finished

    def make(self, site: Site, tensor: ir.TensorProtocol) -> Codes | str:
        """The codes; in words instead, why it stays as it is."""
        return self._stack(site, tensor) if site.role == "experts" else self._matrix(site, tensor)

    def _matrix(self, site: Site, tensor: ir.TensorProtocol) -> Codes | str:
        choice = _for_activations(self._plan.choices[site.unit], tensor.dtype)
        weight = self._plan.read(site, tensor)
        kind = np.dtype(scale_type(weight, choice.scheme, tensor.dtype))
        needed = packed_bytes(site.rows, site.inputs, choice, kind.itemsize)
        if needed >= tensor.nbytes:
            return f"would grow to {needed:,} bytes"
        matrix, index = self._quantized(site, weight, choice, kind)
        return Codes((matrix,), index, kind, relative_error(weight, matrix, index))

    def _stack(self, site: Site, tensor: ir.TensorProtocol) -> Codes:
        plan, choice = self._plan, self._plan.choices[site.unit]
        largest = max(float(np.abs(plan.read(site, tensor, expert)).max()) for expert in range(site.count))
        kind = np.dtype(scale_type_of(largest, choice.scheme))
        weights = (plan.read(site, tensor, expert) for expert in range(site.count))
        stack, error = quantize_stack(weights, lambda i, weight: self._quantized(site, weight, choice, kind, i)[0])
        return Codes(tuple(stack), NO_OUTLIERS, kind, error)

    def _quantized(self, site: Site, weight: Floats, choice: Choice, kind: np.dtype[np.generic], i: int = 0) -> Made:
        recipe = self._plan.recipe

        def make() -> Made:
            return quantize_matrix(weight, self._plan.gram(site, i), choice, recipe.method, kind, recipe.polish)

        return self._finished.get_or_make(f"{site.weight}.{i}", choice, kind, make)


def _for_activations(choice: Choice, dtype: ir.DataType) -> Choice:
    """Steps times codes are exact in float32 only."""
    return choice if dtype == ir.DataType.FLOAT else replace(choice, scheme=replace(choice.scheme, scale_bits=16))
