"""A prefill graph turned into paged.onnx: one graph for every step, over keys and values that lie in blocks.

Tokens of all sequences of a step stand one behind the other, `[1, tokens]`, without padding, and PagedAttention finds
the keys and values of each sequence by its row of a block table. Weights, and everything between two attentions, are
the prefill graph's own.
"""

from typing import TYPE_CHECKING, Any

from runtime.errors import UnsupportedError

if TYPE_CHECKING:
    import onnx_ir as ir

# Inputs of GroupQueryAttention
_QUERY, _KEY, _VALUE, _PAST_KEY, _PAST_VALUE, _SEQLENS, _TOTAL, _COS, _SIN, _POSITIONS, _BIAS, _SINK = range(12)
_K_SCALE, _V_SCALE = 12, 13
_WIDEST_HEAD = 256  # beyond it neither flash nor memory-efficient attention has a kernel that reads blocks
_KEPT = ("num_heads", "kv_num_heads", "scale", "do_rotary", "rotary_interleaved", "local_window_size", "softcap")


def block_tokens_of(widest_head: int) -> int:
    """Tokens of a block: the fewest with which the provider reads blocks in place instead of gathering them first."""
    return 256 if widest_head <= 64 else 128 if widest_head <= 128 else 64


def make_paged(model: "ir.Model", block_tokens: int | None = None) -> "ir.Model":
    """Rewrite a prefill graph in place; it is then the paged graph.

    Args:
        model: the prefill graph.
        block_tokens: tokens of a block; None is what the provider is fastest with.

    Raises:
        UnsupportedError: it has something that PagedAttention has not; says what.
    """
    graph = model.graph
    attentions = [node for node in graph if node.op_type == "GroupQueryAttention"]
    _require_possible(graph, attentions)
    _Rewriting(graph, attentions, block_tokens).run()
    graph.name = "paged"
    return model


def _require_possible(graph: "ir.Graph", attentions: "list[ir.Node]") -> None:
    reasons = [reason for node in attentions for reason in _obstacles(node)]
    if not attentions or any(str(value.name).startswith("past_state") for value in graph.inputs):
        reasons.append("layers that keep a state, whose operators take no packed tokens")
    if reasons:
        raise UnsupportedError(
            f"kv: paged needs PagedAttention, which does not have {reasons[0]}. Leave --kv out: rows are then dense."
        )


def _obstacles(node: "ir.Node") -> "list[str]":
    """What keeps one attention from being paged."""
    found = []
    if _input(node, _BIAS) is not None:
        found.append("a bias of distances (ALiBi)")
    if "kv_cache_bit_width" in node.attributes and node.attributes["kv_cache_bit_width"].as_int() == 4:
        found.append("4-bit codes as GroupQueryAttention packs them")
    width = _head_width(node)
    if width > _WIDEST_HEAD or width % 16:
        found.append(f"heads of {width} channels: they must be a multiple of 16 and at most {_WIDEST_HEAD}")
    return found


def _input(node: "ir.Node", index: int) -> "ir.Value | None":
    return node.inputs[index] if index < len(node.inputs) else None


def _head_width(node: "ir.Node") -> int:
    past = node.inputs[_PAST_KEY]
    while past is not None and past.producer() is not None:  # another layer's present
        producer: Any = past.producer()
        past = producer.inputs[_PAST_KEY]
    assert past is not None
    assert past.shape is not None
    return int(past.shape[3])  # type: ignore[arg-type]


class _Rewriting:
    """One graph: inputs, then attention by attention, then whatever was made of lengths."""

    def __init__(self, graph: "ir.Graph", attentions: "list[ir.Node]", block_tokens: int | None) -> None:
        self._graph, self._attentions = graph, attentions
        self._old = {value.name: value for value in graph.inputs}
        self._block = block_tokens or block_tokens_of(max(map(_head_width, attentions)))
        self._unwritten: ir.Value | None = None

    def run(self) -> None:
        import onnx_ir as ir

        int32, int64 = ir.DataType.INT32, ir.DataType.INT64
        self._old["input_ids"].shape = ir.Shape([1, "tokens"])
        self._cumulative = self._add_input("cumulative_sequence_length", int32, ["boundaries"])
        self._pasts = self._add_input("past_seqlens", int32, ["sequences"])
        self._table = self._add_input("block_table", int32, ["sequences", "blocks"])
        self._bounds = self._add_input("attention_metadata", int32, [2])
        self._take_positions(int64)
        for node in self._attentions:
            self._replace(node)
        self._shape_cache()
        self._drop_lengths()

    def _add_input(self, name: str, dtype: "ir.DataType", shape: "list[int | str]") -> "ir.Value":
        import onnx_ir as ir

        value = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape))
        self._graph.inputs.append(value)
        return value

    def _take_positions(self, int64: "ir.DataType") -> None:
        """Positions of packed tokens are inputs: sequences begin anywhere among them."""
        for node in list(self._graph):
            if node.name == "model.shared.positions":
                positions = self._add_input("position_ids", int64, [1, "tokens"])
                node.outputs[0].replace_all_uses_with(positions)
            elif node.name == "model.shared.last_position":  # a rope that switches asks for each token's sequence
                last = self._add_input("last_positions", int64, [1, "tokens"])
                node.outputs[0].replace_all_uses_with(last)
            elif node.name == "model.shared.table_start_column":
                moved = node.inputs[0]
                assert moved is not None
                node.outputs[0].replace_all_uses_with(moved)

    def _replace(self, node: "ir.Node") -> None:
        """[1, tokens, heads * width] → [tokens, …] → PagedAttention → [1, tokens, …]."""
        import onnx_ir as ir

        query, key, value, rotated = self._heads(node)
        cos, sin = (None, None) if rotated else (_input(node, _COS), _input(node, _SIN))
        scales = [self._scale(node, index) for index in (_K_SCALE, _V_SCALE)]
        unwritten = self._no_slots(node) if self._borrows(node) else None
        inputs = [
            query, key, value, node.inputs[_PAST_KEY], node.inputs[_PAST_VALUE], self._cumulative, self._pasts,
            self._table, cos, sin, unwritten, _input(node, _SINK), None, None, *scales, self._bounds,
        ]  # fmt: skip
        paged = ir.node(
            "PagedAttention", inputs, self._attributes(node, rotated), domain="com.microsoft",
            num_outputs=1 if unwritten is not None else 3, name=node.name,
        )  # fmt: skip
        names = [f"{node.name}.packed", *(value.name for value in node.outputs[1:])]
        for output, name in zip(paged.outputs, names, strict=False):
            output.name = name
        self._graph.insert_before(node, paged)
        back = self._reshape(node, paged.outputs[0], [1, -1, _heads_width(node)], "unpacked")
        self._rewire(node, [back, *paged.outputs[1:]])

    def _rewire(self, node: "ir.Node", outputs: "list[ir.Value]") -> None:
        for old, new in zip(node.outputs, outputs, strict=False):
            new.type, new.shape = old.type, old.shape
            old.replace_all_uses_with(new, replace_graph_outputs=True)
        self._graph.remove(node, safe=True)

    def _heads(self, node: "ir.Node") -> "tuple[Any, Any, Any, bool]":
        """Queries, keys and values as [tokens, …]; with rows of a rope's table given, rotated by them first."""
        query, key, value = node.inputs[_QUERY], node.inputs[_KEY], node.inputs[_VALUE]
        width, kv_heads = _head_width(node), node.attributes["kv_num_heads"].as_int()
        if self._borrows(node):  # of the right shape, and never looked at
            key = value = self._slice(node, query, kv_heads * width)
        rows = _input(node, _POSITIONS)
        if rows is not None and key is None:
            sizes = [node.attributes["num_heads"].as_int() * width, kv_heads * width, kv_heads * width]
            query, key, value = self._split(node, query, sizes)
        if rows is not None:
            query, key = self._rotate(node, query, rows, "q"), self._rotate(node, key, rows, "k")
        parts = [
            None if part is None else self._reshape(node, part, [-1, size], f"{name}_packed")
            for name, part, size in zip("qkv", (query, key, value), self._widths(node, key), strict=True)
        ]
        return parts[0], parts[1], parts[2], rows is not None

    def _widths(self, node: "ir.Node", key: Any) -> "list[int]":
        width, kv = _head_width(node), node.attributes["kv_num_heads"].as_int() * _head_width(node)
        query = node.attributes["num_heads"].as_int() * width
        return [query if key is not None else query + 2 * kv, kv, kv]

    def _borrows(self, node: "ir.Node") -> bool:
        past = node.inputs[_PAST_KEY]
        return past is not None and past.producer() is not None

    def _no_slots(self, node: "ir.Node") -> "ir.Value":
        """-1 for each token: nothing is written. Emitted once."""
        if self._unwritten is None:
            ids = self._old["input_ids"]
            zeros = self._emit(node, "Sub", [ids, ids], {}, "unwritten.zeros")
            flat = self._reshape(node, zeros, [-1], "unwritten.flat")
            narrow = self._emit(node, "Cast", [flat], {"to": 6}, "unwritten.int32")
            one = self._constant(node, 1, "unwritten.one", "int32")
            self._unwritten = self._emit(node, "Sub", [narrow, one], {}, "unwritten.slots")
        return self._unwritten

    def _slice(self, node: "ir.Node", query: Any, width: int) -> "ir.Value":
        starts, ends, axes = (
            self._constant(node, [value], f"{node.name}.slice_{name}")
            for name, value in (("start", 0), ("end", width), ("axis", 2))
        )
        return self._emit(node, "Slice", [query, starts, ends, axes], {}, f"{node.name}.unused_keys")

    def _split(self, node: "ir.Node", packed: Any, sizes: "list[int]") -> "list[ir.Value]":
        import onnx_ir as ir

        lengths = self._constant(node, sizes, f"{node.name}.sizes")
        split = ir.node("Split", [packed, lengths], {"axis": -1}, num_outputs=3, name=f"{node.name}.split")
        for name, value in zip("qkv", split.outputs, strict=True):
            value.name = f"{node.name}.{name}"
        self._graph.insert_before(node, split)
        return list(split.outputs)

    def _rotate(self, node: "ir.Node", part: Any, rows: Any, name: str) -> "ir.Value":
        heads = node.attributes["num_heads" if name == "q" else "kv_num_heads"].as_int()
        interleaved = node.attributes["rotary_interleaved"].as_int()
        cos = node.inputs[_COS]
        attributes = {"num_heads": heads, "interleaved": interleaved, "rotary_embedding_dim": _rotary(cos, node)}
        inputs = [part, rows, cos, node.inputs[_SIN]]
        return self._emit(node, "RotaryEmbedding", inputs, attributes, f"{node.name}.{name}_rope", "com.microsoft")

    def _scale(self, node: "ir.Node", index: int) -> "ir.Value | None":
        """[1, kv_heads, 1, width] → [kv_heads, 1, width]."""
        scale = _input(node, index)
        if scale is None:
            return None
        shape = [node.attributes["kv_num_heads"].as_int(), 1, _head_width(node)]
        return self._reshape(node, scale, shape, "k_scale_per_head" if index == _K_SCALE else "v_scale_per_head")

    def _attributes(self, node: "ir.Node", rotated: bool) -> dict[str, Any]:
        kept = {name: node.attributes[name] for name in _KEPT if name in node.attributes}
        quantized = {
            name: node.attributes[name] for name in ("k_quant_type", "v_quant_type") if name in node.attributes
        }
        result: dict[str, Any] = {name: attribute.value for name, attribute in (kept | quantized).items()}
        return result | {"do_rotary": 0} if rotated else result

    def _reshape(self, node: "ir.Node", value: Any, shape: "list[int]", name: str) -> "ir.Value":
        sizes = self._constant(node, shape, f"{node.name}.{name}.shape")
        return self._emit(node, "Reshape", [value, sizes], {}, f"{node.name}.{name}")

    def _constant(self, before: "ir.Node", value: Any, name: str, dtype: str = "int64") -> "ir.Value":
        import numpy as np
        import onnx_ir as ir

        tensor = ir.tensor(np.array(value, dtype), name=name)
        return self._emit(before, "Constant", [], {"value": tensor}, name)

    def _emit(
        self,
        before: "ir.Node",
        op_type: str,
        inputs: "list[Any]",
        attributes: dict[str, Any],
        name: str,
        domain: str = "",
    ) -> "ir.Value":
        import onnx_ir as ir

        node = ir.node(op_type, inputs, attributes, domain=domain, name=name)
        node.outputs[0].name = name
        self._graph.insert_before(before, node)
        return node.outputs[0]

    def _shape_cache(self) -> None:
        import onnx_ir as ir

        for value in (*self._graph.inputs, *self._graph.outputs):
            if str(value.name).startswith(("past_key_values.", "present.")):
                assert value.shape is not None
                _, kv_heads, _, width = value.shape
                value.shape = ir.Shape(["num_blocks", self._block, kv_heads, width])

    def _drop_lengths(self) -> None:
        """Remove what nobody uses any more, and the inputs of lengths with it."""
        import onnx_ir as ir
        from onnx_ir.passes.common import RemoveUnusedNodesPass

        model = ir.Model(self._graph, ir_version=11)
        RemoveUnusedNodesPass()(model)
        for name in ("seqlens_k", "total_sequence_length", "query_seqlens"):
            value = self._old.get(name)
            if value is None:
                continue
            users = [node.name for node, _ in value.uses()]
            if users:
                raise UnsupportedError(
                    f"kv: paged wants lengths for attention alone, and {users[0]} uses {name}. Leave --kv out."
                )
            self._graph.inputs.remove(value)


def _heads_width(node: "ir.Node") -> int:
    return node.attributes["num_heads"].as_int() * _head_width(node)


def _rotary(cos: Any, node: "ir.Node") -> int:
    """Channels that a rope rotates; 0 where all do. The width of its table is known to its inverse frequencies."""
    rotary = 2 * _columns(cos)
    return 0 if rotary == _head_width(node) else rotary


def _columns(table: Any) -> int:
    """Columns of a rope's table, from the initializer of frequencies behind it."""
    while table.producer() is not None:
        node = table.producer()
        table = node.inputs[1] if node.op_type == "Mul" and node.name and "angles" in node.name else node.inputs[0]
    assert table.shape is not None
    return int(table.shape[-1])
