"""Move a Llama checkpoint off its grid as `offgrid.py` moves the bundle that was made of it, for peers that read
checkpoints: the same scales, and an export of the target has the weights of that bundle to the bit.

    python tests/bench/offgrid_checkpoint.py SOURCE_FOLDER TARGET_FOLDER
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from quantizer.transforms.equivalent import Axis, EquivalentTransforms, rearranged

WEIGHTS = "model.safetensors"
READERS = {
    "input_layernorm": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    "post_attention_layernorm": ["mlp.gate_proj", "mlp.up_proj"],
}


def plan(config: dict[str, Any], tensors: dict[str, np.ndarray]) -> EquivalentTransforms:
    """The changes of `offgrid.py`, under a checkpoint's names."""
    changes, rng = EquivalentTransforms(), np.random.default_rng(0)
    for layer in range(config["num_hidden_layers"]):
        module = f"model.layers.{layer}."
        for norm, readers in READERS.items():
            gain = tensors[f"{module}{norm}.weight"].astype(np.float64)
            changes.change_outputs(f"{module}{norm}.weight", Axis(scale=1 / gain))
            for reader in readers:
                changes.change_inputs(f"{module}{reader}.weight", Axis(scale=gain))
        scale = 2.0 ** rng.uniform(-0.5, 0.5, (config["num_key_value_heads"], config["head_dim"]))
        shared = np.repeat(scale, config["num_attention_heads"] // config["num_key_value_heads"], axis=0)
        scale_between(changes, f"{module}self_attn.v_proj", scale.ravel(), f"{module}self_attn.o_proj", shared.ravel())
        scale = 2.0 ** rng.uniform(-0.5, 0.5, config["intermediate_size"])
        scale_between(changes, f"{module}mlp.up_proj", scale, f"{module}mlp.down_proj", scale)
    return changes


def scale_between(
    changes: EquivalentTransforms, before: str, rows: np.ndarray, behind: str, columns: np.ndarray
) -> None:
    """The rows of one matrix times a scale, the columns of the matrix behind it divided by it."""
    changes.change_outputs(f"{before}.weight", Axis(scale=rows))
    changes.change_inputs(f"{behind}.weight", Axis(scale=1 / columns))


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    tensors = load_file(source / WEIGHTS)
    changes = plan(json.loads((source / "config.json").read_text()), tensors)
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(WEIGHTS))
    moved = {name: rearranged(name, array, changes, transposed=False) for name, array in tensors.items()}
    save_file(moved, target / WEIGHTS, metadata={"format": "pt"})
