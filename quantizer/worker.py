"""The codes of each matrix by the plan: what takes long, and is done for a few matrices beside each other."""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import onnx_ir as ir

from .algorithms.hessian import Hessian
from .algorithms.outlier_channels import refit, set_apart
from .algorithms.quantize_matrix import quantize_matrix
from .graph.expert_stacks import quantize_stack
from .graph.quantizable import QuantizableWeight
from .parallel import parallel_map
from .plan import Plan
from .storage.matrix import NO_RESIDUALS, Floats, Index, QuantizedMatrix, effective
from .storage.packing import packed_bytes
from .storage.resume import Made, ResumeCache
from .storage.scheme import QuantConfig
from .storage.stored import OutlierWeights
from .storage.storing import largest_of, relative_error, scale_type, scale_type_of


@dataclass(frozen=True)
class Codes:
    """A quantized matrix, or a stack of them.

    Attributes:
        matrices: one, or one for each expert.
        index: inputs that the matrix repeats as residual-coded channels.
        kind: the type of its scales.
        error: ‖W − Ŵ‖ / ‖W‖, the inputs in `outliers` aside.
        outliers: inputs that stay in floating point.
    """

    matrices: tuple[QuantizedMatrix, ...]
    index: Index
    kind: np.dtype[np.generic]
    error: float
    outliers: OutlierWeights | None = None


class QuantizeWorker:
    """Makes codes; safe to call from several threads.

    Args:
        plan: of the run.
        finished: matrices of an earlier run that was killed.
    """

    def __init__(self, plan: Plan, finished: ResumeCache) -> None:
        self._plan = plan
        self._finished = finished

    def make(self, site: QuantizableWeight, tensor: ir.TensorProtocol) -> Codes | str:
        """The codes; in words instead, why it stays as it is."""
        return self._stack(site, tensor) if site.role == "experts" else self._matrix(site, tensor)

    def _matrix(self, site: QuantizableWeight, tensor: ir.TensorProtocol) -> Codes | str:
        config = _for_activations(self._plan.configs[site.unit], tensor.dtype)
        weight = self._plan.read(site, tensor)
        kind = np.dtype(scale_type(weight, config.scheme, tensor.dtype))
        needed = packed_bytes(site.rows, site.inputs, config, kind.itemsize)
        if needed >= tensor.nbytes:
            return f"would grow to {needed:,} bytes"
        channels = self._plan.outlier_channels.get(site.weight)
        if channels is not None:
            return self._with_outliers(site, weight, config, kind, channels)
        matrix, index = self._quantized(site, weight, self._plan.hessian(site), config, kind)
        return Codes((matrix,), index, kind, relative_error(weight, matrix, index))

    def _with_outliers(
        self, site: QuantizableWeight, weight: Floats, config: QuantConfig, kind: np.dtype[np.generic], channels: Index
    ) -> Codes:
        hessian = self._plan.hessian(site)
        assert hessian is not None
        others, left = set_apart(weight, hessian.values, channels)
        matrix, index = self._quantized(site, others, Hessian(left), config, kind)
        outliers = refit(weight, hessian.values, channels, effective(matrix, index))
        return Codes((matrix,), index, kind, relative_error(others, matrix, index), outliers)

    def _stack(self, site: QuantizableWeight, tensor: ir.TensorProtocol) -> Codes:
        plan, config = self._plan, self._plan.configs[site.unit]

        def largest(expert: int) -> float:
            return largest_of(plan.read(site, tensor, expert))

        of_all = max(parallel_map(partial(largest, expert) for expert in range(site.count)))
        kind = np.dtype(scale_type_of(of_all, config.scheme))
        weights = (plan.read(site, tensor, expert) for expert in range(site.count))

        def quantized(i: int, weight: Floats) -> QuantizedMatrix:
            return self._quantized(site, weight, plan.hessian(site, i), config, kind, i)[0]

        stack, error = quantize_stack(weights, quantized)
        return Codes(tuple(stack), NO_RESIDUALS, kind, error)

    def _quantized(
        self,
        site: QuantizableWeight,
        weight: Floats,
        hessian: Hessian | None,
        config: QuantConfig,
        kind: np.dtype[np.generic],
        i: int = 0,
    ) -> Made:
        recipe = self._plan.recipe

        def make() -> Made:
            return quantize_matrix(weight, hessian, config, recipe.method, kind, recipe.polish)

        return self._finished.get_or_make(f"{site.weight}.{i}", config, kind, make)


def _for_activations(config: QuantConfig, dtype: ir.DataType) -> QuantConfig:
    """Steps times codes are exact in float32 only."""
    return config if dtype == ir.DataType.FLOAT else replace(config, scheme=replace(config.scheme, scale_bits=16))
