"""The new weights.bin, one matrix at a time, and the graphs over it."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import onnx_ir as ir

from runtime.bundle.bundle import Bundle
from runtime.bundle.manifest import QuantizedTensor
from runtime.errors import QuantizationError

from ..graph.expert_stacks import store_stack
from ..graph.graphs import WEIGHTS_NAME, Graphs, save_graph
from ..graph.quantizable import QuantizableWeight
from ..graph.rewrite import StoredMatrix, rewrite_graph
from ..graph.rewrite_experts import rewrite_experts
from ..parallel import parallel_map
from ..plan import Plan
from ..progress import Progress
from ..worker import Codes, QuantizeWorker
from .float_copy import rearranged
from .resume import ResumeCache
from .storing import store_codes
from .weights_file import WeightsWriter, read_tensor

_AT_ONCE = 2  # matrices in memory; of each a Hessian, its factor and several copies of the weights


@dataclass(frozen=True)
class Outcome:
    """What became of one matrix: its entry in the manifest, or the reason why it stays as it was."""

    site: QuantizableWeight
    bytes_before: int
    tensor: QuantizedTensor | None
    reason: str = ""


def write_graphs(
    bundle: Bundle, graphs: Graphs, plan: Plan, finished: ResumeCache, folder: Path, progress: Progress
) -> list[Outcome]:
    """Write weights.bin and the graphs of `bundle` into `folder`, quantized by `plan`."""
    tensors = graphs.initializers()
    made = _codes(plan, tensors, QuantizeWorker(plan, finished))
    with WeightsWriter(folder / WEIGHTS_NAME) as writer:
        writing = _Writing(plan, writer)
        for name, tensor in tensors.items():
            if site := writing.sites.get(name):
                progress("quantizing", len(writing.outcomes), len(writing.sites))
                writing.add_matrix(site, tensor, next(made))
            if name not in writing.stored:
                writing.add(name, tensor)
    level = 4 if bundle.manifest.target.provider == "cpu" else 0
    for file, model in graphs.models.items():
        rewrite_experts(model.graph, writing.stored, level)
        rewrite_graph(model.graph, writing.stored, level)
        save_graph(model, folder / file, writer.placed)
    return writing.outcomes


def copy_other_files(bundle: Bundle, folder: Path) -> None:
    """Copy what a new bundle takes over unchanged: every file of the old one that is not there yet."""
    for name in bundle.manifest.files:
        if not (folder / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(bundle.folder / name, folder / name)


@contextmanager
def translated() -> Iterator[None]:
    """A full disk and the like, in our words."""
    try:
        yield
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise QuantizationError(
            f"{where}cannot be written ({error.strerror or error}); nothing was written."
        ) from error


def _codes(plan: Plan, tensors: dict[str, ir.TensorProtocol], maker: QuantizeWorker) -> Iterator[Codes | str]:
    """Of every matrix that is to be quantized, in the order of the file."""
    sites = {site.weight: site for site in plan.sites}
    chosen = ((sites[name], tensor) for name, tensor in tensors.items() if name in sites)
    return parallel_map((partial(maker.make, site, tensor) for site, tensor in chosen), _AT_ONCE)


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
            return store_stack(self._writer, site, list(made.matrices), made.kind, made.error)
        (matrix,) = made.matrices
        return store_codes(self._writer, site.weight, matrix, made.index, made.kind, made.error, made.outliers)
