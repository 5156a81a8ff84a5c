"""Tensors as an adapter changes them, computed when they are read."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from runtime.errors import CheckpointError

from ..checkpoint import FloatArray, PackedTensor, TensorSource
from ..safetensors.file import SafetensorsTensor

Init = Literal["pissa", "olora"]


@dataclass(frozen=True)
class Changed:
    """A tensor that an adapter changes."""

    base: TensorSource

    @property
    def name(self) -> str:
        """Name of the tensor."""
        return self.base.name

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor."""
        return self.base.shape

    @property
    def dtype(self) -> str:
        """For messages."""
        return f"{self.base.dtype} + LoRA"

    def packed(self) -> PackedTensor | None:
        """None: changed values are not on the grid any more."""
        return None


@dataclass(frozen=True)
class LowRankChange(Changed):
    """A weight with its low-rank change: W + scale · B @ A.

    Args:
        base: W.
        down, up: A `[r, in]` and B `[out, r]`.
        scale: of the change.
        transposed: W is stored `[in, out]`; the change is `[out, in]` all the same.
        magnitude: of DoRA (Liu et al. 2024): each output's row of the result is given this norm.
        init: how A and B began, where their first product was subtracted from W.
    """

    down: SafetensorsTensor
    up: SafetensorsTensor
    scale: float
    transposed: bool = False
    magnitude: SafetensorsTensor | None = None
    init: Init | None = None

    def __post_init__(self) -> None:
        change = (self.up.shape[0], self.down.shape[1])
        expected = change[::-1] if self.transposed else change
        if self.base.shape != expected or self.up.shape[1] != self.down.shape[0]:
            factors = f"{list(self.up.shape)} @ {list(self.down.shape)}"
            raise CheckpointError(f"LoRA for {self.name}: {factors} does not fit {list(self.base.shape)}.")
        if self.magnitude is not None and int(np.prod(self.magnitude.shape)) != change[0]:
            raise CheckpointError(
                f"LoRA for {self.name}: lora_magnitude_vector has the shape {list(self.magnitude.shape)}, "
                f"expected [{change[0]}]."
            )

    def read(self) -> FloatArray:
        """The merged values in float32."""
        weight = self.base.read()
        weight = weight.T if self.transposed else weight
        if self.init is not None:
            weight = weight - _first_product(weight, self.down.shape[0], self.init, self.scale)
        change = self.up.read() @ self.down.read()
        change *= np.float32(self.scale)
        change += weight
        if self.magnitude is not None:
            norms = np.linalg.norm(change, axis=1, keepdims=True)
            change *= self.magnitude.read().reshape(-1, 1) / norms
        return np.ascontiguousarray(change.T if self.transposed else change)


def _first_product(weight: FloatArray, rank: int, init: Init, scale: float) -> FloatArray:
    """What training subtracted from the base `[out, in]` when it began.

    PiSSA (Meng et al. 2024): the nearest matrix of that rank. OLoRA (Büyükakyüz 2024): the first columns of Q times the
    first rows of R, times the scale. Signs that the decompositions leave open cancel in both.
    """
    if init == "pissa":
        left, values, right = np.linalg.svd(weight, full_matrices=False)
        nearest: FloatArray = (left[:, :rank] * values[:rank]) @ right[:rank]
        return nearest
    left, right = np.linalg.qr(weight)
    first: FloatArray = np.float32(scale) * (left[:, :rank] @ right[:rank])
    return first


@dataclass(frozen=True)
class ReplacedRows(Changed):
    """An embedding some of whose rows were trained alone: row `ids[j]` is row j of `rows`."""

    rows: SafetensorsTensor
    ids: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.rows.shape != (len(self.ids), *self.base.shape[1:]) or max(self.ids, default=-1) >= self.base.shape[0]:
            raise CheckpointError(
                f"LoRA for {self.name}: trained tokens {list(self.rows.shape)} at {len(self.ids)} ids up to "
                f"{max(self.ids, default=-1)} do not fit {list(self.base.shape)}."
            )

    def read(self) -> FloatArray:
        """All rows in float32."""
        values = self.base.read()
        values[np.array(self.ids, np.int64)] = self.rows.read()
        return values


@dataclass(frozen=True)
class AddedBias(Changed):
    """A bias with the scaled bias of the second factor."""

    change: SafetensorsTensor
    scale: float

    def __post_init__(self) -> None:
        if self.change.shape != self.base.shape:
            raise CheckpointError(
                f"LoRA for {self.name}: a bias of {list(self.change.shape)} does not fit {list(self.base.shape)}."
            )

    def read(self) -> npt.NDArray[np.float32]:
        """The sum in float32."""
        return self.base.read() + np.float32(self.scale) * self.change.read()
