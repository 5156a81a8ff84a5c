"""The whole flow: a bundle with float weights in, a bundle with packed weights out."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from runtime import strict_json
from runtime.bundle import Bundle, new_bundle, open_bundle, write_manifest
from runtime.errors import QuantizationError
from runtime.manifest import Calibration, Manifest, Quantization, QuantizedTensor

from .graphs import WEIGHTS_NAME, Graphs, load_graphs, save_graph
from .matrix import Floats
from .packing import packed_bytes
from .rewrite import StoredMatrix, rewrite_graph
from .rounding import round_to_nearest
from .scheme import Recipe
from .selection import select_sites
from .sites import Site, find_sites, merge_sites
from .storing import scale_type, store_matrix
from .weights_file import WeightsWriter, read_tensor

Progress = Callable[[Site, int], None]


@dataclass(frozen=True)
class Outcome:
    """What became of one matrix: its entry in the manifest, or the reason why it stays as it was."""

    site: Site
    bytes_before: int
    tensor: QuantizedTensor | None
    reason: str = ""


@dataclass(frozen=True)
class Result:
    """The new manifest, and what happened to every matrix."""

    manifest: Manifest
    outcomes: tuple[Outcome, ...]

    @property
    def bits_per_weight(self) -> float:
        """Bits of weights.bin for each parameter of the model, padding included."""
        return 8 * self.manifest.files[WEIGHTS_NAME].size / self.manifest.architecture.parameters


def quantize(
    source: Path,
    target: Path,
    recipe: Recipe,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Result:
    """Write a quantized copy of the bundle `source` to the folder `target`: all of it, or nothing.

    Args:
        source: a bundle with float weights.
        target: the new bundle's folder.
        recipe: what to store, and how to choose it.
        overwrite: replace a bundle that is already there.
        progress: called before each matrix with it and the number of all matrices.

    Raises:
        QuantizationError: the bundle is quantized already, a weight is not finite, a pattern matches nothing.
        BundleError: `source` cannot be read, or `target` is in the way.
    """
    bundle = open_bundle(source)
    _require_unquantized(bundle)
    graphs = load_graphs(bundle)
    found = [list(find_sites(m.graph, bundle.manifest.architecture.vocab_size)) for m in graphs.models.values()]
    sites = select_sites(merge_sites(found), recipe.exclude)
    with new_bundle(target, overwrite=overwrite) as folder:
        outcomes = _write_graphs(bundle, graphs, sites, recipe, folder, progress)
        _copy_other_files(bundle, folder)
        manifest = write_manifest(folder, _describe(bundle.manifest, graphs, recipe, outcomes))
    return Result(manifest, tuple(outcomes))


def _write_graphs(
    bundle: Bundle,
    graphs: Graphs,
    sites: list[Site],
    recipe: Recipe,
    folder: Path,
    progress: Progress | None,
) -> list[Outcome]:
    """Weights first, one at a time; then each graph over them."""
    tensors = graphs.initializers()
    by_weight = {site.weight: site for site in sites}
    stored: dict[str, StoredMatrix] = {}
    outcomes: list[Outcome] = []
    with WeightsWriter(folder / WEIGHTS_NAME) as writer:
        for name, tensor in tensors.items():
            if name in by_weight:
                if progress:
                    progress(by_weight[name], len(sites))
                outcomes.append(_quantize_site(by_weight[name], tensor, recipe, writer, stored))
            if name not in stored:
                writer.add(name, read_tensor(tensor), tensor.dtype)
    for file, model in graphs.models.items():
        rewrite_graph(model.graph, stored, accuracy_level=4 if bundle.manifest.target.provider == "cpu" else 0)
        save_graph(model, folder / file, writer.placed)
    return outcomes


def _quantize_site(
    site: Site, tensor: ir.TensorProtocol, recipe: Recipe, writer: WeightsWriter, stored: dict[str, StoredMatrix]
) -> Outcome:
    scheme = recipe.table if site.role == "table" else recipe.linear
    weight = _read_matrix(site, tensor)
    kind = np.dtype(scale_type(weight, scheme, tensor.dtype))
    needed = packed_bytes(site.rows, site.inputs, scheme, kind.itemsize)
    if needed >= tensor.nbytes:
        return Outcome(site, tensor.nbytes, None, f"would grow to {needed:,} bytes")
    matrix = round_to_nearest(weight, scheme, kind)
    stored[site.weight], entry = store_matrix(writer, site.weight, weight, matrix, kind)
    return Outcome(site, tensor.nbytes, entry)


def _read_matrix(site: Site, tensor: ir.TensorProtocol) -> Floats:
    """The weights as float32 `[N, K]`."""
    array = read_tensor(tensor)
    weight = np.ascontiguousarray(array.T if site.transposed else array, np.float32)
    if not np.isfinite(weight).all():
        raise QuantizationError(
            f"{site.weight}: holds NaN or infinite weights; the source checkpoint is broken. Export a sound one."
        )
    return weight


def _require_unquantized(bundle: Bundle) -> None:
    if bundle.manifest.quantization is not None:
        raise QuantizationError(
            f"{bundle.folder} is quantized already; quantizing twice loses twice. Start from the float bundle."
        )


def _copy_other_files(bundle: Bundle, folder: Path) -> None:
    for name in bundle.manifest.files:
        if not (folder / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(bundle.folder / name, folder / name)


def _describe(manifest: Manifest, graphs: Graphs, recipe: Recipe, outcomes: list[Outcome]) -> Manifest:
    tensors = tuple(outcome.tensor for outcome in outcomes if outcome.tensor)
    quantization = Quantization(strict_json.encode(recipe), Calibration("none", 0), tensors)
    operators = {_operator(node) for model in graphs.models.values() for node in model.graph}
    target = replace(manifest.target, operators=tuple(sorted(operators)))
    return replace(manifest, target=target, quantization=quantization, quality=None)


def _operator(node: ir.Node) -> str:
    return f"{node.domain or 'ai.onnx'}::{node.op_type}"
