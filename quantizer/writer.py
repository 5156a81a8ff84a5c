"""The new weights.bin, one matrix at a time, and the graphs over it."""

from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path

import onnx_ir as ir

from runtime.bundle.bundle import Bundle
from runtime.bundle.manifest import QuantizedTensor

from .graph.expert_stacks import store_stack
from .graph.graphs import Graphs
from .graph.quantizable import QuantizableWeight
from .graph.saving import save_rewritten
from .parallel import parallel_map
from .plan import Plan
from .progress import Progress
from .storage.resume import ResumeCache
from .storage.stored import StoredMatrix
from .storage.storing import store_codes
from .storage.weights_file import WEIGHTS_NAME, WeightsWriter, read_tensor
from .transforms.equivalent import rearranged
from .worker import Codes, QuantizeWorker

_LARGE = 1 << 29  # bytes: the token table of a model of a billion parameters


@dataclass(frozen=True)
class Outcome:
    """What became of one matrix: its entry in the manifest, or the reason why it stays as it was."""

    site: QuantizableWeight
    bytes_before: int
    tensor: QuantizedTensor | None
    reason: str = ""


def write_graphs(
    bundle: Bundle,
    graphs: Graphs,
    plan: Plan,
    finished: ResumeCache,
    folder: Path,
    progress: Progress,
    at_once: int,
) -> tuple[list[Outcome], dict[str, str]]:
    """Write weights.bin and the graphs of `bundle` into `folder`, quantized by `plan`, `at_once` matrices in memory.

    Returns what became of each matrix, and the hash of weights.bin by its name.
    """
    tensors = graphs.initializers()
    codes = _codes(plan, tensors, QuantizeWorker(plan, finished), at_once)
    # Closed at once where writing fails: what is under way ends while there are threads to wait for.
    with closing(codes) as made, WeightsWriter(folder / WEIGHTS_NAME) as writer:
        writing = _Writing(plan, writer)
        for name, tensor in tensors.items():
            if site := writing.sites.get(name):
                progress("quantizing", len(writing.outcomes), len(writing.sites))
                writing.add_matrix(site, tensor, next(made))
            if name not in writing.stored:
                writing.add(name, tensor)
    save_rewritten(graphs.models, writing.stored, writer.placed, bundle.manifest.target.provider, folder)
    return writing.outcomes, {WEIGHTS_NAME: writer.sha256}


def _codes(
    plan: Plan, tensors: dict[str, ir.TensorProtocol], maker: QuantizeWorker, at_once: int
) -> Generator[Codes | str, None, None]:
    """Of every matrix that is to be quantized, in the order of the file; a large one has memory and cores to itself."""
    sites = {site.weight: site for site in plan.sites}
    chosen = ((sites[name], tensor) for name, tensor in tensors.items() if name in sites)
    for large, group in groupby(chosen, lambda one: one[0].count == 1 and one[1].nbytes > _LARGE):
        tasks = (partial(maker.make, site, tensor) for site, tensor in group)
        yield from (task() for task in tasks) if large else parallel_map(tasks, at_once)


class _Writing:
    """The file as it grows, and what became of the matrices in it."""

    def __init__(self, plan: Plan, writer: WeightsWriter) -> None:
        self._plan = plan
        self._writer = writer
        self.sites = {site.weight: site for site in plan.sites}
        self.stored: dict[str, StoredMatrix] = {}
        self.outcomes: list[Outcome] = []

    def add(self, name: str, tensor: ir.TensorProtocol) -> None:
        """Write an initializer that is not quantized."""
        array = rearranged(name, read_tensor(tensor), self._plan.changes, transposed=self._plan.is_transposed(name))
        self._writer.add(name, array, tensor.dtype)

    def add_matrix(self, site: QuantizableWeight, tensor: ir.TensorProtocol, made: Codes | str) -> None:
        """Write the codes of a matrix, if it has any."""
        if isinstance(made, str):
            self.outcomes.append(Outcome(site, tensor.nbytes, None, made))
            return
        self.stored[site.weight], entry = self._store(site, made)
        self.outcomes.append(Outcome(site, tensor.nbytes, entry))

    def _store(self, site: QuantizableWeight, made: Codes) -> tuple[StoredMatrix, QuantizedTensor]:
        if site.role == "experts":
            makers = [partial(made.matrices.__getitem__, number) for number in range(site.count)]
            return store_stack(self._writer, site, makers, lambda: made.kind, made.error)
        (matrix,) = made.matrices
        return store_codes(self._writer, site.weight, matrix, made.index, made.kind, made.error, made.outliers)
