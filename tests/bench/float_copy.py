"""A float copy of a bundle with rearranged weights: what benchmarks start from, and how exactness is tested."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy.typing as npt

from quantizer.graph.graphs import load_graphs, prefill_graph
from quantizer.graph.quantizable import transposed_weights
from quantizer.graph.saving import save_graph
from quantizer.storage.weights_file import WEIGHTS_NAME, WeightsWriter, read_tensor
from quantizer.transforms.discover import Structure, find_structure
from quantizer.transforms.equivalent import EquivalentTransforms, rearranged
from runtime.bundle.bundle import new_bundle, open_bundle, write_manifest

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
