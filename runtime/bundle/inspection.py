"""What a bundle is, from its manifest and the outlines of its graphs: no weight is read, no session opened."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from ..errors import IntegrityError
from .bundle import Bundle
from .manifest import QuantizedTensor
from .onnx_outline import GraphOutline, Initializer, Node, read_outline


@dataclass(frozen=True)
class Module:
    """One module's stored weights, biases included: `model.layers.0.mlp.down_proj`, as `4 bits × 32, asymmetric`."""

    name: str
    stored: str
    weights: int
    bytes: int
    relative_error: float | None

    @property
    def bits_per_weight(self) -> float:
        """Everything that is stored for the module, per weight."""
        return 8 * self.bytes / self.weights if self.weights else 0.0

    @property
    def kind(self) -> str:
        """The name with `*` for the layer's number: what the same modules of all layers share."""
        return re.sub(r"\.\d+(?=\.|$)", ".*", self.name)


@dataclass(frozen=True)
class Inspection:
    """A bundle's modules, and how often each graph uses each operator."""

    modules: tuple[Module, ...]
    operators: dict[str, dict[str, int]]
    weight_bytes: int
    parameters: int
    bits_per_weight: float


def inspect_bundle(bundle: Bundle) -> Inspection:
    """Look through a bundle's graphs.

    Raises:
        IntegrityError: a graph is no ONNX file, or refers to bytes outside the bundle's files.
    """
    graphs = bundle.manifest.graphs.present
    outlines = {phase: read_outline(bundle.path(graph.file)) for phase, graph in graphs.items()}
    for phase, outline in outlines.items():
        _check_places(bundle, graphs[phase].file, outline.initializers)
    modules = _modules(bundle, list(outlines.values()))
    return Inspection(
        modules=modules,
        operators={phase: _count_operators(outline.nodes) for phase, outline in outlines.items()},
        weight_bytes=sum(module.bytes for module in modules),
        parameters=bundle.manifest.architecture.parameters,
        bits_per_weight=bundle.manifest.bits_per_weight,
    )


def _check_places(bundle: Bundle, graph: str, initializers: Iterable[Initializer]) -> None:
    for tensor in initializers:
        if tensor.location is None:
            continue
        if not bundle.has(tensor.location):
            raise IntegrityError(
                f"{bundle.folder}: {graph} takes {tensor.name} from {tensor.location!r}, no file of the bundle."
            )
        size = bundle.manifest.files[tensor.location].size
        if tensor.offset < 0 or tensor.nbytes < 0 or tensor.offset + tensor.nbytes > size:
            raise IntegrityError(f"{bundle.folder}: {graph} takes {tensor.name} from beyond {tensor.location}.")


def _modules(bundle: Bundle, outlines: list[GraphOutline]) -> tuple[Module, ...]:
    stored = {(t.location, t.offset): t for outline in outlines for t in outline.initializers if t.location}
    counts = {name: count for outline in outlines for node in outline.nodes for name, count in _packed(node)}
    by_module: dict[str, list[Initializer]] = {}
    for tensor in sorted(stored.values(), key=lambda tensor: tensor.offset):
        by_module.setdefault(tensor.name.rpartition(".")[0] or tensor.name, []).append(tensor)
    quantization = bundle.manifest.quantization
    packed = {tensor.name.removesuffix(".weight"): tensor for tensor in quantization.tensors} if quantization else {}
    return tuple(_module(name, tensors, packed.get(name), counts) for name, tensors in by_module.items())


def _module(name: str, tensors: list[Initializer], packed: QuantizedTensor | None, counts: dict[str, int]) -> Module:
    stored, error = " + ".join(dict.fromkeys(tensor.dtype for tensor in tensors)), None
    if packed is not None:
        stored = f"{packed.bits} bits × {packed.group_size}, {'symmetric' if packed.symmetric else 'asymmetric'}"
        stored += f", {packed.outliers} outliers" if packed.outliers else ""
        stored += f", {packed.float_inputs} inputs in float" if packed.float_inputs else ""
        error = packed.relative_error
    weights = sum(counts.get(t.name, t.size if t.name.endswith((".weight", ".bias")) else 0) for t in tensors)
    return Module(name, stored, weights, sum(tensor.nbytes for tensor in tensors), error)


def _packed(node: Node) -> list[tuple[str, int]]:
    """The packed input of a quantized product, and how many weights it stands for (padding is not one)."""
    size = node.integers.get("K", 0) * node.integers.get("N", 0)
    return [(node.inputs[1], size)] if size and len(node.inputs) > 1 else []


def _count_operators(nodes: Iterable[Node]) -> dict[str, int]:
    return dict(Counter(node.operator for node in nodes).most_common())
