"""Find the weight matrices of a graph, and what multiplies or gathers them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import onnx_ir as ir

Use = Literal["matmul", "gemm", "gather"]
# What stands between a router's product and the choice of experts.
_ELEMENTWISE = frozenset({
    "Abs", "Add", "Cast", "Div", "Identity", "Log", "Max", "Min", "Mul", "Reshape", "Sigmoid", "Softmax", "Softplus",
    "Sub", "Tanh", "Unsqueeze",
})  # fmt: skip


@dataclass(frozen=True)
class QuantizableWeight:
    """One weight matrix that can be quantized, or a stack of them, one for each expert.

    Attributes:
        name: of the module, `model.layers.3.mlp.down_proj`; what `--exclude` matches.
        weight: name of its initializer, the same in every graph.
        role: "embedding" for token embeddings and head, "experts" for stacks, "linear" for all others.
        rows, inputs: outputs and inputs of the multiplication; an embedding has one row per token.
        transposed: stored as `[inputs, rows]`, the layout of MatMul.
        count: matrices in the stack.
        operator: module of the experts, all of whose stacks are stored alike.
        divisor: that the group size must divide; 0 where any will do.
        joined: how the matrices of a stack are stored: apart, or as one matrix of all their rows or all their inputs.
        multiplied: False for an embedding that is only gathered: a decode step reads one row.
        active: matrices of the stack that one token reads.
    """

    name: str
    weight: str
    role: Literal["linear", "embedding", "experts"]
    rows: int
    inputs: int
    transposed: bool
    count: int = 1
    operator: str = ""
    divisor: int = 0
    joined: Literal["stack", "rows", "inputs"] = "stack"
    multiplied: bool = True
    active: int = 1

    @property
    def unit(self) -> str:
        """Under which name it is decided how this is stored."""
        return self.operator or self.weight


def find_quantizable_weights(graph: ir.Graph, vocab_size: int) -> Iterator[QuantizableWeight]:
    """All matrices of one graph that only MatMul, Gemm (`transB`) and Gather (axis 0) use."""
    for value in graph.initializers.values():
        uses = [use_of(node, value) for node in value.consumers()]
        same_layout = len({use == "matmul" for use in uses}) == 1
        if not uses or None in uses or not same_layout or not is_matrix(value):
            continue
        if not _is_left_out(value, uses, vocab_size):
            yield _quantizable_weight(value, set(uses), vocab_size)


def transposed_weights(graph: ir.Graph) -> set[str]:
    """Names of the matrices that lie in the file as `[inputs, rows]`: those that MatMul reads."""
    return {
        str(value.name)
        for value in graph.initializers.values()
        if any(use_of(node, value) == "matmul" for node in value.consumers())
    }


def use_of(node: ir.Node, weight: ir.Value) -> Use | None:
    """How `node` uses the matrix `weight`; None for a way that has no quantized operator."""
    inputs = list(node.inputs)
    if inputs.count(weight) != 1 or node.domain not in ("", "ai.onnx"):
        return None
    if node.op_type == "MatMul" and inputs[1] is weight:
        return "matmul"
    if node.op_type == "Gather" and inputs[0] is weight and node.attributes.get_int("axis", 0) == 0:
        return "gather"
    if node.op_type == "Gemm" and inputs[1] is weight and _plain_gemm(node):
        return "gemm"
    return None


def merge_quantizable_weights(graphs: Iterable[Iterable[QuantizableWeight]]) -> list[QuantizableWeight]:
    """Sites of several graphs over the same weights, each once, in order of first appearance.

    A weight that two graphs use differently (multiplied in one, gathered too in the other) keeps the wider role.
    """
    merged: dict[str, QuantizableWeight] = {}
    for sites in graphs:
        for site in sites:
            known = merged.setdefault(site.weight, site)
            if site.role == "embedding" and known.role != "embedding":
                merged[site.weight] = site
    return list(merged.values())


def _plain_gemm(node: ir.Node) -> bool:
    numbers = node.attributes
    return (
        numbers.get_int("transB", 0) == 1
        and numbers.get_int("transA", 0) == 0
        and numbers.get_float("alpha", 1.0) == 1.0
        and numbers.get_float("beta", 1.0) == 1.0
    )


def is_matrix(value: ir.Value) -> bool:
    """Whether a value is a constant `[N, K]` of floats."""
    return (
        value.const_value is not None
        and len(value.const_value.shape) == 2
        and value.const_value.dtype in (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
    )


def _is_left_out(value: ir.Value, uses: Sequence[Use | None], vocab_size: int) -> bool:
    """Small, and everything depends on it: routers of experts, single rows, tables of positions."""
    assert value.const_value is not None
    first, second = value.const_value.shape.numpy()
    if "gather" in uses:
        return first != vocab_size and not all(_is_of_tokens(node.inputs[1]) for node in value.consumers())
    rows = second if "matmul" in uses else first
    return rows == 1 or any(_chooses_experts(node.outputs[0]) for node in value.consumers())


def _chooses_experts(scores: ir.Value) -> bool:
    """Whether values decide, elementwise operators later, which experts a token goes to."""
    waiting, seen = [scores], {scores}
    while waiting:
        value = waiting.pop()
        for node in value.consumers():
            if node.op_type == "TopK" or (node.op_type in ("MoE", "QMoE") and node.inputs[1] is value):
                return True
            if node.op_type in _ELEMENTWISE:
                waiting += [output for output in node.outputs if output not in seen]
                seen.update(node.outputs)
    return False


def _is_of_tokens(indices: ir.Value | None) -> bool:
    """Whether indices are made of the values of `input_ids`, and not of its shape as positions are."""
    waiting, seen = [indices], {indices}
    while waiting:
        value = waiting.pop()
        if value is not None and value.name == "input_ids":
            return True
        node = value.producer() if value is not None else None
        if node is not None and node.op_type not in ("Shape", "Size"):
            waiting += [source for source in node.inputs if source not in seen]
            seen.update(node.inputs)
    return False


def _quantizable_weight(value: ir.Value, uses: set[Use | None], vocab_size: int) -> QuantizableWeight:
    assert value.name is not None
    assert value.const_value is not None
    first, second = value.const_value.shape.numpy()
    transposed = "matmul" in uses
    rows, inputs = (second, first) if transposed else (first, second)
    role: Literal["linear", "embedding"] = "embedding" if "gather" in uses or rows == vocab_size else "linear"
    name = value.name.removesuffix(".weight")
    return QuantizableWeight(name, value.name, role, rows, inputs, transposed, multiplied=uses != {"gather"})
