"""Exact changes of a model that its weights absorb: reordered and scaled channels.

If the rows of one matrix are reordered or scaled and the columns of the matrix behind it undo that, the model computes
what it did before. Permutations, smoothing and the off-grid benchmark are all of this form.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.errors import QuantizationError

from ..storage.matrix import Floats

Order = npt.NDArray[np.intp]
Scale = npt.NDArray[np.float64]
_VALUES = 1 << 20  # that are scaled at a time
_CACHED = 1 << 16  # that stay in the cache, in double precision too


@dataclass(frozen=True)
class Axis:
    """New channel i is old channel `order[i]` times `scale[i]`; None leaves order or scale as it is."""

    order: Order | None = None
    scale: Scale | None = None

    def then(self, later: "Axis") -> "Axis":
        """This change followed by another."""
        if later.order is None:
            order, scale = self.order, self.scale
        else:
            order = later.order if self.order is None else self.order[later.order]
            scale = None if self.scale is None else self.scale[later.order]
        if later.scale is not None:
            scale = later.scale if scale is None else scale * later.scale
        return Axis(order, scale)

    @property
    def identity(self) -> tuple[bytes, bytes]:
        """Equal for equal changes."""
        order, scale = self.order, self.scale
        return b"" if order is None else order.tobytes(), b"" if scale is None else scale.tobytes()

    def apply(self, array: Floats, axis: int) -> Floats:
        """Reorder and scale one axis of an array."""
        if self.order is not None:
            array = np.take(array, self.order, axis=axis)
        return array if self.scale is None else _scaled(array, self.scale, axis)

    @property
    def changes(self) -> bool:
        """Whether it changes anything."""
        return self.order is not None or self.scale is not None

    @property
    def reversed(self) -> "Axis":
        """The change that undoes this one."""
        scale = None if self.scale is None else 1 / self.scale
        if self.order is None:
            return Axis(None, scale)
        order = np.argsort(self.order)
        return Axis(order, None if scale is None else scale[order])

    def apply_to_hessian(self, hessian: Floats) -> Floats:
        """The Hessian of inputs whose weights' columns change by this axis: the inputs are scaled back."""
        if not self.changes:
            return hessian
        result = np.empty_like(hessian, np.float32)
        step = max(1, _CACHED // len(hessian))
        for start in range(0, len(hessian), step):
            part = slice(start, start + step)
            rows = (
                hessian[part] if self.order is None else hessian[self.order[part]].take(self.order, axis=1, mode="clip")
            )
            result[part] = rows if self.scale is None else rows / np.outer(self.scale[part], self.scale)
        return result


def _scaled(array: Floats, scale: Scale, axis: int) -> Floats:
    """A new array; some rows at a time, for in between it is in double precision."""
    result = np.empty(array.shape, np.float32)
    step = max(1, _VALUES // max(1, array[0].size)) if len(array) else 1
    for start in range(0, len(array), step):
        part = slice(start, start + step)
        factors = scale if axis else scale[part]
        shape = [1] * array.ndim
        shape[axis] = -1
        result[part] = array[part] * factors.reshape(shape)
    return result


def _changed(weight: Floats, outputs: Axis, inputs: Axis) -> Floats:
    """A matrix `[N, K]` with both axes changed, some rows at a time, so that only one copy exists."""
    if not outputs.changes and not inputs.changes:
        return weight
    result = np.empty(weight.shape, np.float32)
    step = max(1, _VALUES // max(1, weight.shape[1]))
    for start in range(0, len(weight), step):
        part = slice(start, start + step)
        rows = weight[part] if outputs.order is None else weight[outputs.order[part]]
        if outputs.scale is not None:
            rows = _scaled(rows, outputs.scale[part], 0)
        result[part] = inputs.apply(rows, 1)
    return result


class EquivalentTransforms:
    """Changes by weight name: outputs (rows `[N]`) and inputs (columns `[K]`); vectors have outputs only."""

    def __init__(self) -> None:
        self._outputs: dict[str, Axis] = {}
        self._inputs: dict[str, Axis] = {}

    def outputs(self, name: str) -> Axis:
        """The change of the outputs of a weight."""
        return self._outputs.get(name, Axis())

    def inputs(self, name: str) -> Axis:
        """The change of the inputs of a weight."""
        return self._inputs.get(name, Axis())

    def change_outputs(self, name: str | None, axis: Axis) -> None:
        """Add a change behind those that are planned already; no name is no weight."""
        if name is not None:
            self._outputs[name] = self.outputs(name).then(axis)

    def change_inputs(self, name: str, axis: Axis) -> None:
        """Add a change behind those that are planned already."""
        self._inputs[name] = self.inputs(name).then(axis)

    def matrix(self, name: str, weight: Floats) -> Floats:
        """The changed matrix `[N, K]`."""
        return _changed(weight, self.outputs(name), self.inputs(name))

    def undo_matrix(self, name: str, weight: Floats) -> Floats:
        """The matrix `[N, K]` that `matrix` made this one from."""
        return _changed(weight, self.outputs(name).reversed, self.inputs(name).reversed)

    def vector(self, name: str, values: Floats) -> Floats:
        """The changed gain or bias `[N]`."""
        return self.outputs(name).apply(values, 0)

    def __contains__(self, name: str) -> bool:
        return name in self._outputs or name in self._inputs


def not_finite(name: str) -> QuantizationError:
    """What to raise where the weights of `name` are not all numbers."""
    return QuantizationError(
        f"{name}: holds NaN or infinite weights; the source checkpoint is broken. Export a sound one."
    )


def rearranged(
    name: str, array: npt.NDArray[Any], changes: EquivalentTransforms, *, transposed: bool
) -> npt.NDArray[Any]:
    """A float tensor as `changes` make it; `transposed` says that a matrix lies in the file as `[K, N]`."""
    if array.dtype.kind == "f" and np.isnan(array).any():
        raise not_finite(name)
    if name not in changes:
        return array
    if array.ndim == 1:
        return changes.vector(name, array.astype(np.float32)).astype(array.dtype)
    changed = changes.matrix(name, (array.T if transposed else array).astype(np.float32))
    return (changed.T if transposed else changed).astype(array.dtype)
