"""Weights of a graph under construction: their shape now, and how the exporter will fill them later."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from onnxscript.nn import Parameter

from ..targets.target import Target

PLAN = "onnxlm.plan"

DTYPES = {"float32": ir.DataType.FLOAT, "float16": ir.DataType.FLOAT16, "bfloat16": ir.DataType.BFLOAT16}


@dataclass(frozen=True)
class Plan:
    """How checkpoint tensors, stacked along their first axis, become an initializer.

    In this order: values become `scale * value + offset`; row j goes to `rows[j]` and column j to `columns[j]` (zeros
    elsewhere); the matrix is transposed to `[in, out]` if `transposed`. `computed` replaces all of that by a constant.
    If `stacked`, the initializer is a stack of such matrices, one for each expert or head.
    """

    transposed: bool = False
    rows: npt.NDArray[np.int64] | None = None
    columns: npt.NDArray[np.int64] | None = None
    scale: float = 1.0
    offset: float = 0.0
    computed: npt.NDArray[np.float32] | None = None
    stacked: bool = False


def parameter(shape: Sequence[int], target: Target, plan: Plan | None = None) -> Any:
    """A weight of the graph's `shape`; its `Plan` travels in the value's (unserialised) meta."""
    value = Parameter(shape, dtype=DTYPES[target.dtype])
    value.meta[PLAN] = plan or Plan()
    return value


def scalar(op: Any, value: float, target: Target) -> Any:
    """A number in the target's type, as a node's input."""
    dtype = DTYPES[target.dtype]
    return op.Constant(value=ir.tensor(np.array(value, dtype.numpy()), dtype=dtype))


def constant(array: npt.NDArray[np.float32], target: Target) -> Any:
    """A weight that is computed, not read."""
    return parameter(array.shape, target, Plan(computed=array))
