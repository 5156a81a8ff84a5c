"""Move a bundle's weights off the 4-bit grid that its checkpoint was published on, exactly.

The SmolLM2 file that is at hand holds 4-bit weights: a quantizer that lands on the same grid loses nothing and proves
nothing. Norm gains are folded into the matrices behind them, then value and up channels are scaled by random powers of
two between 2**-0.5 and 2**0.5 and scaled back behind; the logits move by 1e-4.

    python tests/bench/offgrid.py SOURCE_BUNDLE TARGET_BUNDLE
"""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from quantizer.fold import scale_gate, scale_norm, scale_values
from quantizer.graphs import WEIGHTS_NAME, load_graphs, save_graph
from quantizer.rearrange import Rearrangements
from quantizer.sites import find_sites
from quantizer.structure import Structure, find_structure
from quantizer.weights_file import WeightsWriter, read_tensor
from runtime.bundle import new_bundle, open_bundle, write_manifest


def plan(structure: Structure, read) -> Rearrangements:
    """The changes, in the order that the benchmark's definition fixes: v first, then up, layer by layer."""
    changes = Rearrangements()
    for norm in structure.norms:
        scale_norm(changes, norm, read(norm.gain).astype(np.float64))
    rng = np.random.default_rng(0)
    for attention, gate in zip(structure.attentions, structure.gates, strict=True):
        scale_values(changes, attention, 2.0 ** rng.uniform(-0.5, 0.5, attention.kv_heads * attention.head_dim))
        scale_gate(changes, gate, 2.0 ** rng.uniform(-0.5, 0.5, read(gate.down).shape[0]))
    return changes


def main(source: Path, target: Path) -> None:
    """Write the off-grid twin of `source`."""
    bundle = open_bundle(source)
    graphs = load_graphs(bundle)
    tensors = graphs.initializers()
    graph = graphs.models[bundle.manifest.graphs.prefill.file].graph
    transposed = {site.weight: site.transposed for site in find_sites(graph, bundle.manifest.architecture.vocab_size)}
    changes = plan(find_structure(graph), lambda name: read_tensor(tensors[name]))
    with new_bundle(target, overwrite=True) as folder:
        with WeightsWriter(folder / WEIGHTS_NAME) as writer:
            for name, tensor in tensors.items():
                array = read_tensor(tensor)
                if name in transposed:
                    turned = array.T if transposed[name] else array
                    changed = changes.matrix(name, turned)
                    array = changed.T if transposed[name] else changed
                elif array.ndim == 1:
                    array = changes.vector(name, array)
                writer.add(name, array.astype(np.float32))
        for file, model in graphs.models.items():
            save_graph(model, folder / file, writer.placed)
        for name in bundle.manifest.files:
            if not (folder / name).exists():
                (folder / name).write_bytes((source / name).read_bytes())
        write_manifest(folder, replace(bundle.manifest, quality=None))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
