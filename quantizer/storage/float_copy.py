"""A float copy of a bundle with rearranged weights: what benchmarks start from, and how exactness is tested."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.bundle.bundle import new_bundle, open_bundle, write_manifest
from runtime.errors import QuantizationError

from ..graph.graphs import WEIGHTS_NAME, load_graphs, prefill_graph, save_graph
from ..graph.quantizable import transposed_weights
from ..transforms.discover import Structure, find_structure
from ..transforms.equivalent import EquivalentTransforms
from .weights_file import WeightsWriter, read_tensor

Read = Callable[[str], npt.NDArray[Any]]


def write_float_copy(source: Path, target: Path, plan: Callable[[Structure, Read], EquivalentTransforms]) -> None:
    """Write `source` to `target` with the changes that `plan` makes of its structure and its weights."""
    bundle = open_bundle(source)
    graphs = load_graphs(bundle)
    tensors = graphs.initializers()
    graph = prefill_graph(bundle, graphs)
    transposed = transposed_weights(graph)
    structure = find_structure(graph, bundle.manifest.architecture.vocab_size)
    changes = plan(structure, lambda name: read_tensor(tensors[name]))
    with new_bundle(target, overwrite=True) as folder:
        with WeightsWriter(folder / WEIGHTS_NAME) as writer:
            for name, tensor in tensors.items():
                array = rearranged(name, read_tensor(tensor), changes, transposed=name in transposed)
                writer.add(name, array, tensor.dtype)
        for file, model in graphs.models.items():
            save_graph(model, folder / file, writer.placed)
        for name in bundle.manifest.files:
            if not (folder / name).exists():
                shutil.copyfile(source / name, folder / name)
        write_manifest(folder, replace(bundle.manifest, quality=None))


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
