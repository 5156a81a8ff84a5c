"""Every node of a graph finds its kernel in the table of its target, or the export is refused by name."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runtime.errors import UnsupportedError

if TYPE_CHECKING:
    import onnx_ir as ir

    from models.targets.kernels import Operator
    from models.targets.target import Target


@dataclass(frozen=True)
class Missing:
    """A node that its provider has no kernel for; `types` are element types by the operator's type names."""

    node: str
    operator: str
    types: Mapping[str, str]


def require_kernels(graph: "ir.Graph", target: "Target") -> None:
    """Raise UnsupportedError unless the target has a kernel for each node: loading would fail, or run it elsewhere."""
    from models.targets.kernels import builds
    from models.targets.registry import PROVIDERS

    missing = find_missing(graph, target)
    if not missing:
        return
    first, provider = missing[0], PROVIDERS[target.provider]
    types = ", ".join(f"{name} = {element}" for name, element in first.types.items())
    more = f", nor for {len(missing) - 1} more nodes" if len(missing) > 1 else ""
    raise UnsupportedError(
        f"ONNX Runtime {builds()[provider.kernel_column]} has no {provider.title} kernel for {first.node}, "
        f"{first.operator} of {types}{more}. Export for another --target or --dtype, and please report this with the "
        "model's config.json."
    )


def find_missing(graph: "ir.Graph", target: "Target") -> list[Missing]:
    """The nodes without a kernel, in the graph's order; [] means that all run where the graph is meant to run."""
    from models.targets.kernels import operators

    table = operators()
    return [
        Missing(node.name or node.op_type, name, types)
        for node, name, types in node_types(graph)
        if name not in table or not _runs(table[name], target, types)
    ]


def node_types(graph: "ir.Graph") -> Iterator[tuple["ir.Node", str, dict[str, str]]]:
    """Each node but constants, its operator's name in the table, and the element types of its type names.

    Types of inputs and initializers are known; those of outputs follow, node by node, from the operators' signatures.
    """
    from models.targets.kernels import operators

    table = operators()
    known = {value: _element(value.dtype) for value in (*graph.inputs, *graph.initializers.values())}
    for node in graph:
        if node.op_type == "Constant":  # ONNX Runtime turns it into an initializer
            known[node.outputs[0]] = _constant_element(node)
            continue
        name = f"{node.domain or 'ai.onnx'}::{node.op_type}"
        types = _bind(node, table[name], known) if name in table else {}
        yield node, name, types


def _bind(node: "ir.Node", operator: "Operator", known: "dict[ir.Value, str]") -> dict[str, str]:
    """Element types of the node's type names; its outputs become known."""
    types: dict[str, str] = {}
    for value, name in zip(node.inputs, operator.type_names(operator.inputs, len(node.inputs)), strict=True):
        element = known.get(value, "an unknown type") if value is not None else None
        if element is not None and types.setdefault(name, element) != element:
            types[name] = f"{types[name]} and {element}"  # which no kernel takes
    types |= {name: element for name, element in operator.only.items() if name not in types}
    wanted = node.attributes.get("to")
    for value, name in zip(node.outputs, operator.type_names(operator.outputs, len(node.outputs)), strict=True):
        if name not in types and wanted is not None:
            types[name] = _element(wanted.as_int())
        known[value] = types.get(name, name)
    return types


def _runs(operator: "Operator", target: "Target", types: Mapping[str, str]) -> bool:
    """Also by way of float32, where the provider does that."""
    from models.targets.registry import PROVIDERS

    provider = PROVIDERS[target.provider]
    if operator.has_kernel(provider.kernel_column, types):
        return True
    wide = {name: "float" if element == "float16" else element for name, element in types.items()}
    return provider.halves_in_single and operator.has_kernel(provider.kernel_column, wide)


def _constant_element(node: "ir.Node") -> str:
    (attribute,) = node.attributes.values()
    if attribute.name == "value":
        return _element(attribute.as_tensor().dtype)
    return "float" if attribute.name.startswith("value_float") else "int64"


def _element(dtype: Any) -> str:
    """FLOAT16, as onnx_ir has it, is float16 here."""
    import onnx_ir as ir

    assert dtype is not None
    return ir.DataType(dtype).name.lower()
