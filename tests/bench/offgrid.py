"""Move a bundle's weights off the 4-bit grid that its checkpoint was published on, exactly.

The SmolLM2 file that is at hand holds 4-bit weights: a quantizer that lands on the same grid loses nothing and proves
nothing. Norm gains are folded into the matrices behind them, then value and up channels are scaled by random powers of
two between 2**-0.5 and 2**0.5 and scaled back behind; the logits move by 1e-4.

    python tests/bench/offgrid.py SOURCE_BUNDLE TARGET_BUNDLE
"""

import sys
from pathlib import Path

import numpy as np
from float_copy import Read, write_float_copy

from quantizer.transforms.discover import Structure
from quantizer.transforms.equivalent import EquivalentTransforms
from quantizer.transforms.smooth import scale_gate, scale_norm, scale_values


def plan(structure: Structure, read: Read) -> EquivalentTransforms:
    """The changes, in the order that the benchmark's definition fixes: v first, then up, layer by layer."""
    changes = EquivalentTransforms()
    for norm in structure.norms:
        scale_norm(changes, norm, read(norm.vectors[0]).astype(np.float64))
    rng = np.random.default_rng(0)
    for attention, gate in zip(structure.attentions, structure.gates, strict=True):
        scale_values(changes, attention, 2.0 ** rng.uniform(-0.5, 0.5, attention.kv_heads * attention.head_dim))
        scale_gate(changes, gate, 2.0 ** rng.uniform(-0.5, 0.5, read(gate.down).shape[0]))
    return changes


if __name__ == "__main__":
    write_float_copy(Path(sys.argv[1]), Path(sys.argv[2]), plan)
