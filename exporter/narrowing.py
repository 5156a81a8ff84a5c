"""A float32 graph turned into one of 16-bit floats, where its hidden states are; what is made of positions stays wide.

Rope tables, biases of distances and the like do not depend on any weight: they are computed in float32, and cast where
they meet hidden states. Logits leave in float32, and scales of the cache stay what attention wants.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx_ir as ir

    from models.targets.target import Target

_WIDE_INPUTS = {"GroupQueryAttention": (12, 13)}  # k_scale, v_scale


def narrow(graph: "ir.Graph", target: "Target") -> None:
    """Change types and insert casts, in place; the initializers' data is not touched, only their declared types."""
    _Narrowing(graph, target).run()


class _Narrowing:
    """One pass over the nodes, in order."""

    def __init__(self, graph: "ir.Graph", target: "Target") -> None:
        import onnx_ir as ir

        from models.blocks.parameter import DTYPES

        self._graph = graph
        self._wide, self._half = ir.DataType.FLOAT, ir.DataType(int(DTYPES[target.dtype]))
        self._target = target
        self._narrowed: set[ir.Value] = set()
        self._casts: dict[tuple[ir.Value, int], ir.Value] = {}

    def run(self) -> None:
        for value in self._graph.inputs:
            if value.dtype == self._wide:
                self._become_half(value)
        for node in list(self._graph):
            if not self._unwrap_scale(node) and self._is_hidden(node):
                self._narrow_node(node)
        for output in list(self._graph.outputs):
            if output.name == "logits" and output in self._narrowed:
                self._widen_logits(output)

    def _become_half(self, value: "ir.Value") -> None:
        import onnx_ir as ir

        value.type = ir.TensorType(self._half)
        self._narrowed.add(value)

    def _unwrap_scale(self, node: "ir.Node") -> bool:
        """Scales are stored in 16 bits, and cast on the CPU: without the cast they are what CUDA takes."""
        import onnx_ir as ir

        source = node.inputs[0] if node.op_type == "Cast" else None
        if source is None or not source.is_initializer() or node.attributes["to"].as_int() != int(self._wide):
            return False
        if source.dtype not in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16):  # codes of scales: cast them less far
            node.attributes["to"] = ir.AttrInt64("to", int(self._half))
            self._become_half(node.outputs[0])
            return True
        self._become_half(source)
        node.outputs[0].replace_all_uses_with(source)
        self._graph.remove(node)
        return True

    def _is_hidden(self, node: "ir.Node") -> bool:
        """Whether it computes with weights, or with what was computed with them."""
        return any(value is not None and (value in self._narrowed or self._is_weight(value)) for value in node.inputs)

    def _is_weight(self, value: "ir.Value") -> bool:
        import onnx_ir as ir

        return value.is_initializer() and isinstance(value.const_value, ir.ExternalTensor)

    def _narrow_node(self, node: "ir.Node") -> None:
        import onnx_ir as ir

        if "accuracy_level" in node.attributes:  # 8-bit products, which only CPUs have
            node.attributes["accuracy_level"] = ir.AttrInt64("accuracy_level", 0)
        wide = _WIDE_INPUTS.get(node.op_type, ())
        for index, value in enumerate(node.inputs):
            if value is None or index in wide or value in self._narrowed or not self._is_float(value):
                continue
            if self._is_weight(value):
                self._become_half(value)
            else:
                node.replace_input_with(index, self._cast(value, node))
        if node.op_type == "Cast":  # to an index, or from one
            return
        for value in node.outputs:
            if value.dtype in (None, self._wide):
                self._become_half(value)

    def _is_float(self, value: "ir.Value") -> bool:
        """Values inside the graph carry no types: those not narrowed are float32 or indices."""
        if value.dtype is not None:
            return value.dtype == self._wide
        return _computes_floats(value)

    def _cast(self, value: "ir.Value", user: "ir.Node") -> "ir.Value":
        import onnx_ir as ir

        key = (value, int(self._half))
        if key not in self._casts:
            node = ir.node("Cast", [value], {"to": int(self._half)}, name=f"{value.name}.narrow")
            node.outputs[0].name = f"{value.name}.narrow"
            self._graph.insert_before(user, node)
            self._casts[key] = node.outputs[0]
            self._become_half(node.outputs[0])
        return self._casts[key]

    def _widen_logits(self, output: "ir.Value") -> None:
        import onnx_ir as ir

        inner = output.producer()
        assert inner is not None
        output.name = "logits.narrow"
        cast = ir.node("Cast", [output], {"to": int(self._wide)}, name="logits.float32")
        cast.outputs[0].name, cast.outputs[0].shape = "logits", output.shape
        cast.outputs[0].type = ir.TensorType(self._wide)
        self._graph.insert_after(inner, cast)
        self._graph.outputs[list(self._graph.outputs).index(output)] = cast.outputs[0]


def _computes_floats(value: "ir.Value") -> bool:
    """Whether a value that depends on no weight is float32, by what made it."""
    node: Any = value.producer()
    if node is None:
        return False
    if node.op_type == "Cast":
        return bool(node.attributes["to"].as_int() == 1)
    if node.op_type == "Constant":
        (attribute,) = node.attributes.values()
        return bool(attribute.name.startswith("value_float") or (attribute.name == "value" and _is_wide(attribute)))
    if node.op_type in ("Shape", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "And"):
        return False
    first = next((source for source in node.inputs if source is not None), None)
    if first is None:
        return False
    return bool(first.dtype == 1) if first.dtype is not None else _computes_floats(first)


def _is_wide(attribute: Any) -> bool:
    return bool(attribute.as_tensor().dtype == 1)
