"""The matrices of LoRA adapters as inputs of a step: those of its rows side by side, and masks to keep them apart."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..adapters.fitting import FittedAdapter, kind_of
from ..bundle.manifest import Graph
from .binding import FloatArray

_KEPT = 8  # sets of adapters whose joined matrices stay in memory


class AdapterInputs:
    """What the graphs get for the adapters of a step's rows.

    Rows name adapters by number, from 1 on; 0 is the model alone. A step binds the matrices of the adapters that its
    rows have, so a step without any costs a product of rank 1 with zeros.

    Args:
        graph: whose inputs they are.
        adapters: fitted to it.
    """

    def __init__(self, graph: Graph, adapters: Sequence[FittedAdapter]) -> None:
        ports = [port for port in graph.inputs if port.role in ("lora_a", "lora_b")]
        self._sizes = {port.name: port.shape for port in ports}
        self._kinds = {
            port.name: port.name.removeprefix("lora_mask.") for port in graph.inputs if port.role == "lora_mask"
        }
        self._adapters = adapters
        self._joined: dict[tuple[int, ...], dict[str, FloatArray]] = {}
        self.rows: tuple[int, ...] | None = None  # of the next step; None before anybody said anything: no adapters

    def active(self, rows: Sequence[int]) -> tuple[int, ...]:
        """The adapters of these rows, each once."""
        return tuple(sorted(set(rows) - {0}))

    def matrices(self, active: tuple[int, ...]) -> dict[str, FloatArray]:
        """By input: A `[in, rank]` and B `[rank, out]`."""
        if active not in self._joined:
            if len(self._joined) >= _KEPT:
                del self._joined[next(iter(self._joined))]
            self._joined[active] = {name: self._join(name, active) for name in self._sizes}
        return self._joined[active]

    def masks(self, active: tuple[int, ...], rows: Sequence[int]) -> dict[str, FloatArray]:
        """By input: `[rows, rank]`, 1 where the column is of the row's adapter."""
        return {name: self._mask(kind, active, rows) for name, kind in self._kinds.items()}

    def _mask(self, kind: str, active: tuple[int, ...], rows: Sequence[int]) -> FloatArray:
        widths = [self._adapters[number - 1].widths[kind] for number in active]
        if not sum(widths):
            return np.zeros((len(rows), 1), np.float32)
        owners = np.repeat(active, widths)
        mask: FloatArray = (np.array(rows)[:, None] == owners).astype(np.float32)
        return mask

    def _join(self, name: str, active: tuple[int, ...]) -> FloatArray:
        product, _, factor = name.rpartition(".")
        axis = 1 if factor == "lora_a" else 0
        parts = [self._part(product, factor, number) for number in active]
        joined = np.concatenate(parts, axis=axis) if parts else self._zeros(name, 0)
        return np.ascontiguousarray(joined) if joined.shape[axis] else self._zeros(name, 1)

    def _part(self, product: str, factor: str, number: int) -> FloatArray:
        adapter = self._adapters[number - 1]
        width = adapter.widths[kind_of(product)]
        name, axis = f"{product}.{factor}", 1 if factor == "lora_a" else 0
        found = self._zeros(name, width)
        if product in adapter.matrices:
            own = adapter.matrices[product][axis ^ 1]
            found[(slice(None), slice(own.shape[1])) if axis else slice(own.shape[0])] = own
        return found

    def _zeros(self, name: str, width: int) -> FloatArray:
        return np.zeros([size if isinstance(size, int) else width for size in self._sizes[name]], np.float32)


class BoundAdapters:
    """Which adapters a bound step has, so that matrices are bound again only when these change."""

    def __init__(self, inputs: AdapterInputs, rows: int) -> None:
        self._inputs, self._count = inputs, rows
        self._active: tuple[int, ...] | None = None
        self._rows: tuple[int, ...] | None = None

    def bind(self, binding: Any) -> None:
        """Bind what has changed since the last run of this step."""
        rows = self._inputs.rows or (0,) * self._count
        assert len(rows) == self._count, f"adapters of {len(rows)} rows for a step of {self._count}"
        if rows == self._rows:
            return
        active = self._inputs.active(rows)
        if active != self._active:
            for name, array in self._inputs.matrices(active).items():
                binding.set_named(name, array)
        for name, mask in self._inputs.masks(active, rows).items():
            binding.set_named(name, mask)
        self._active, self._rows = active, rows
