"""The new weights.bin, one matrix at a time, and the graphs over it."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from runtime.bundle import Bundle
from runtime.manifest import QuantizedTensor

from .expert_stacks import quantize_stack, store_stack
from .finished import FinishedMatrices, Made
from .float_copy import rearranged
from .graphs import WEIGHTS_NAME, Graphs, save_graph
from .matrix import Floats
from .method import quantize_matrix
from .packing import packed_bytes
from .plan import Plan
from .progress import Progress
from .rewrite import StoredMatrix, rewrite_graph
from .rewrite_experts import rewrite_experts
from .scheme import Choice
from .sites import Site
from .storing import scale_type, scale_type_of, store_matrix
from .weights_file import WeightsWriter, read_tensor


@dataclass(frozen=True)
class Outcome:
    """What became of one matrix: its entry in the manifest, or the reason why it stays as it was."""

    site: Site
    bytes_before: int
    tensor: QuantizedTensor | None
    reason: str = ""


def write_graphs(
    bundle: Bundle, graphs: Graphs, plan: Plan, finished: FinishedMatrices, folder: Path, progress: Progress
) -> list[Outcome]:
    """Write weights.bin and the graphs of `bundle` into `folder`, quantized by `plan`."""
    with WeightsWriter(folder / WEIGHTS_NAME) as writer:
        writing = _Writing(plan, finished, writer)
        for name, tensor in graphs.initializers().items():
            writing.add(name, tensor, progress)
    level = 4 if bundle.manifest.target.provider == "cpu" else 0
    for file, model in graphs.models.items():
        rewrite_experts(model.graph, writing.stored, level)
        rewrite_graph(model.graph, writing.stored, level)
        save_graph(model, folder / file, writer.placed)
    return writing.outcomes


class _Writing:
    """The file as it grows, and what became of the matrices in it."""

    def __init__(self, plan: Plan, finished: FinishedMatrices, writer: WeightsWriter) -> None:
        self._plan = plan
        self._finished = finished
        self._writer = writer
        self._sites = {site.weight: site for site in plan.sites}
        self.stored: dict[str, StoredMatrix] = {}
        self.outcomes: list[Outcome] = []

    def add(self, name: str, tensor: ir.TensorProtocol, progress: Progress) -> None:
        """Write one initializer, quantized or as it is."""
        site = self._sites.get(name)
        if site is not None:
            progress(site.name, len(self.outcomes), len(self._sites))
            self.outcomes.append((self._stack if site.role == "experts" else self._matrix)(site, tensor))
        if name not in self.stored:
            array = rearranged(name, read_tensor(tensor), self._plan.changes, transposed=self._plan.is_transposed(name))
            self._writer.add(name, array, tensor.dtype)

    def _matrix(self, site: Site, tensor: ir.TensorProtocol) -> Outcome:
        choice = _for_activations(self._plan.choices[site.unit], tensor.dtype)
        weight = self._plan.read(site, tensor)
        kind = np.dtype(scale_type(weight, choice.scheme, tensor.dtype))
        needed = packed_bytes(site.rows, site.inputs, choice, kind.itemsize)
        if needed >= tensor.nbytes:
            return Outcome(site, tensor.nbytes, None, f"would grow to {needed:,} bytes")
        matrix, index = self._quantized(site, weight, choice, kind)
        self.stored[site.weight], entry = store_matrix(self._writer, site.weight, weight, matrix, index, kind)
        return Outcome(site, tensor.nbytes, entry)

    def _stack(self, site: Site, tensor: ir.TensorProtocol) -> Outcome:
        plan, choice = self._plan, self._plan.choices[site.unit]
        largest = max(float(np.abs(plan.read(site, tensor, expert)).max()) for expert in range(site.count))
        kind = np.dtype(scale_type_of(largest, choice.scheme))
        weights = (plan.read(site, tensor, expert) for expert in range(site.count))
        stack, error = quantize_stack(weights, lambda i, weight: self._quantized(site, weight, choice, kind, i)[0])
        self.stored[site.weight], entry = store_stack(self._writer, site, stack, kind, error)
        return Outcome(site, tensor.nbytes, entry)

    def _quantized(self, site: Site, weight: Floats, choice: Choice, kind: np.dtype[np.generic], i: int = 0) -> Made:
        recipe = self._plan.recipe

        def make() -> Made:
            return quantize_matrix(weight, self._plan.gram(site, i), choice, recipe.method, kind, recipe.polish)

        return self._finished.get_or_make(f"{site.weight}.{i}", choice, kind, make)


def _for_activations(choice: Choice, dtype: ir.DataType) -> Choice:
    """Steps times codes are exact in float32 only."""
    return choice if dtype == ir.DataType.FLOAT else replace(choice, scheme=replace(choice.scheme, scale_bits=16))
