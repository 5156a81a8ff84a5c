"""The two graphs of a bundle as onnx-ir models, and where their shared weights lie."""

from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from runtime.bundle.bundle import Bundle
from runtime.errors import ManifestError, QuantizationError


@dataclass(frozen=True)
class Graphs:
    """File name → model, for prefill and decode; a bundle that reads whole texts has the first alone."""

    models: dict[str, ir.Model]

    def initializers(self) -> dict[str, ir.TensorProtocol]:
        """External initializers of all graphs, each name once, in order of first appearance.

        Raises:
            QuantizationError: two graphs mean different bytes by one name.
        """
        found: dict[str, ir.TensorProtocol] = {}
        for file, model in self.models.items():
            for name, value in model.graph.initializers.items():
                tensor = value.const_value
                if not isinstance(tensor, ir.ExternalTensor):
                    continue
                if _place(found.setdefault(name, tensor)) != _place(tensor):
                    raise QuantizationError(
                        f"{file}: initializer {name!r} is other data than in the graph before it. Export again."
                    )
        return found


def load_graphs(bundle: Bundle) -> Graphs:
    """Read the graphs of `bundle`; weights stay on disk.

    Raises:
        ManifestError: a file is not a readable ONNX graph.
    """
    names = [graph.file for graph in bundle.manifest.graphs.present.values()]
    return Graphs({name: _load(bundle.path(name)) for name in names})


def prefill_graph(bundle: Bundle, graphs: Graphs | None = None) -> ir.Graph:
    """The prefill graph of a bundle, of its `graphs` where these are loaded already."""
    return (graphs or load_graphs(bundle)).models[bundle.manifest.graphs.prefill.file].graph


def add_initializer(graph: ir.Graph, tensor: ir.TensorProtocol) -> ir.Value:
    """A value of the tensor's name, type and shape that holds it, in the graph from now on."""
    assert tensor.name is not None
    value = ir.Value(
        name=tensor.name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()), const_value=tensor
    )
    graph.register_initializer(value)
    return value


def _load(path: Path) -> ir.Model:
    try:
        return ir.load(path)
    except Exception as error:  # protobuf and onnx-ir raise many kinds for a broken file
        raise ManifestError(f"{path}: not a readable ONNX graph ({error}). Copy the bundle again.") from error


def _place(tensor: ir.TensorProtocol) -> tuple[object, ...]:
    assert isinstance(tensor, ir.ExternalTensor)
    return tensor.path, tensor.offset, tensor.length
