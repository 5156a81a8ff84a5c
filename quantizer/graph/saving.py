"""Graphs over packed weights, rewritten and written beside weights.bin; exports and quantized bundles do it alike."""

from collections.abc import Mapping
from pathlib import Path

import onnx_ir as ir

from ..storage.stored import StoredMatrix
from ..storage.weights_file import WEIGHTS_NAME, Placed
from .order import move_to_use
from .rewrite import rewrite_graph
from .rewrite_experts import rewrite_experts

_ROUNDED = 4  # accuracy level of products with activations in 8 bits, which ONNX Runtime has for CPUs only


def save_rewritten(
    models: Mapping[str, ir.Model],
    stored: Mapping[str, StoredMatrix],
    placed: Mapping[str, Placed],
    provider: str,
    folder: Path,
) -> None:
    """Replace the float matrices of graphs by the packed ones that `stored` names, and write them.

    Args:
        models: by file name.
        stored: by weight, the initializers of its codes.
        placed: where every initializer lies in weights.bin.
        provider: that the graphs are for.
        folder: where weights.bin is.
    """
    level = _ROUNDED if provider == "cpu" else 0
    for file, model in models.items():
        rewrite_experts(model.graph, stored, level)
        rewrite_graph(model.graph, stored, level)
        move_to_use(model.graph)
        save_graph(model, folder / file, placed)


def save_graph(model: ir.Model, path: Path, placed: Mapping[str, Placed]) -> None:
    """Write a graph whose external initializers lie at `placed` in weights.bin beside it."""
    for name, value in model.graph.initializers.items():
        if isinstance(value.const_value, ir.ExternalTensor):
            value.const_value = placed[name].tensor(WEIGHTS_NAME, path.parent)
    ir.save(model, path)
