"""PagedAttention twice, from its documentation: in numpy, and as a subgraph of standard operators that CPUs run.

ONNX Runtime has the operator for GPUs only. With the stand-in, a paged bundle's numbers can be computed on a CPU.
"""

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir


def paged_attention(
    query: Any, key: Any, value: Any, caches: tuple[Any, Any], cumulative: Any, pasts: Any, table: Any,
    window: int = -1,
) -> Any:  # fmt: skip
    """One token after the other: query, key, value `[tokens, heads, width]`; caches are written in place."""
    block, result = caches[0].shape[1], np.zeros_like(query)
    for row, past in enumerate(pasts):
        for token in range(cumulative[row], cumulative[row + 1]):
            position = past + token - cumulative[row]
            place = table[row, position // block], position % block
            caches[0][place], caches[1][place] = key[token], value[token]
    for row, past in enumerate(pasts):
        for token in range(cumulative[row], cumulative[row + 1]):
            position = past + token - cumulative[row]
            seen = np.arange(max(0, position - window + 1) if window > 0 else 0, position + 1)
            keys, values = (cache[table[row, seen // block], seen % block] for cache in caches)
            group = query.shape[1] // keys.shape[1]
            for head in range(query.shape[1]):
                scores = keys[:, head // group] @ query[token, head]
                weights = np.exp(scores - scores.max())
                result[token, head] = weights @ values[:, head // group] / weights.sum()
    return result


def stand_in(graph: ir.Graph) -> None:
    """Replace each PagedAttention by standard operators."""
    for node in [node for node in graph if node.op_type == "PagedAttention"]:
        _Subgraph(graph, node).replace()


class _Subgraph:
    def __init__(self, graph: ir.Graph, node: ir.Node) -> None:
        self.graph, self.node, self.count = graph, node, 0
        names = "query key value key_cache value_cache cumulative pasts table cos sin slots sink q_norm k_norm"
        self.given = dict(zip([*names.split(), "k_scale", "v_scale"], node.inputs, strict=False))
        get = node.attributes.get
        self.heads, self.kv_heads = node.attributes["num_heads"].as_int(), node.attributes["kv_num_heads"].as_int()
        self.scale = node.attributes["scale"].as_float()
        self.rotates, self.interleaved = (
            bool(get(name) and get(name).as_int()) for name in ("do_rotary", "rotary_interleaved")
        )
        self.window = get("local_window_size").as_int() if get("local_window_size") else -1
        self.softcap = get("softcap").as_float() if get("softcap") else 0.0

    def op(self, kind: str, *inputs: Any, outputs: int = 1, **attributes: Any) -> Any:
        self.count += 1
        values = [self.constant(v) if isinstance(v, int | float | list | np.ndarray) else v for v in inputs]
        name = f"{self.node.name}.stand_in.{self.count}"
        node = ir.node(kind, values, attributes, num_outputs=outputs, name=name)
        for number, output in enumerate(node.outputs):
            output.name = f"{name}.{number}"
        self.graph.insert_before(self.node, node)
        return node.outputs[0] if outputs == 1 else node.outputs

    def constant(self, value: Any) -> Any:
        self.count += 1
        array = np.array(value, np.float32 if isinstance(value, float) else None)
        node = ir.node("Constant", [], {"value": ir.tensor(array)}, name=f"{self.node.name}.constant.{self.count}")
        node.outputs[0].name = node.name
        self.graph.insert_before(self.node, node)
        return node.outputs[0]

    def replace(self) -> None:
        cache = self.given["key_cache"]
        while cache.producer() is not None or cache.shape is None:
            cache = cache.producer().inputs[0]
        _, self.block, _, self.width = cache.shape
        query, key, value = self._heads()
        self._positions(query)
        if self.rotates:
            query, key = self._rotated(query, self.heads), self._rotated(key, self.kv_heads)
        caches = [self.given["key_cache"], self.given["value_cache"]]
        if self.given.get("slots") is None:
            scales = self.given.get("k_scale"), self.given.get("v_scale")
            caches = [self._written(*each) for each in zip(caches, (key, value), scales, strict=True)]
        output = self._attended(query, *self._both(caches))
        for old, new in zip(self.node.outputs, [output, *caches], strict=False):
            new.type, new.shape = old.type, old.shape
            name, old.name = old.name, f"{old.name}.old"
            new.name = name if old.is_graph_output() else new.name
            old.replace_all_uses_with(new, replace_graph_outputs=True)
        self.graph.remove(self.node, safe=True)

    def _heads(self) -> list[Any]:
        parts = [self.given["query"], self.given["key"], self.given["value"]]
        if parts[1] is None:
            sizes = [self.heads * self.width, self.kv_heads * self.width, self.kv_heads * self.width]
            parts = self.op("Split", parts[0], sizes, outputs=3, axis=1)
        counts = (self.heads, self.kv_heads, self.kv_heads)
        return [self.op("Reshape", p, [-1, n, self.width]) for p, n in zip(parts, counts, strict=True)]

    def _positions(self, query: Any) -> None:
        count = self.op("Squeeze", self.op("Slice", self.op("Shape", query), [0], [1]), [0])
        tokens = self.op("Range", 0, count, 1)
        cumulative, pasts = (self.op("Cast", self.given[name], to=7) for name in ("cumulative", "pasts"))
        ends = self.op("Slice", cumulative, [1], [1 << 30])
        passed = self.op("GreaterOrEqual", self.op("Unsqueeze", tokens, [1]), self.op("Unsqueeze", ends, [0]))
        self.rows = self.op("ReduceSum", self.op("Cast", passed, to=7), [1], keepdims=0)
        starts = self.op("Gather", cumulative, self.rows)
        self.positions = self.op("Add", self.op("Sub", tokens, starts), self.op("Gather", pasts, self.rows))

    def _rotated(self, x: Any, heads: int) -> Any:
        cos, sin = (
            self.op("Unsqueeze", self.op("Gather", self.given[name], self.positions), [1]) for name in ("cos", "sin")
        )
        half = self.op("Slice", self.op("Shape", cos), [2], [3])
        twice = self.op("Mul", half, 2)
        rotating, rest = self.op("Slice", x, [0], twice, [2]), self.op("Slice", x, twice, [1 << 30], [2])
        if self.interleaved:
            pairs = self.op("Reshape", rotating, self.op("Concat", [0, 0], half, [2], axis=0))
            first, second = (self.op("Gather", pairs, i, axis=3) for i in (0, 1))
        else:
            first, second = self.op("Slice", rotating, [0], half, [2]), self.op("Slice", rotating, half, twice, [2])
        left = self.op("Sub", self.op("Mul", first, cos), self.op("Mul", second, sin))
        right = self.op("Add", self.op("Mul", second, cos), self.op("Mul", first, sin))
        if self.interleaved:
            both = self.op("Concat", self.op("Unsqueeze", left, [3]), self.op("Unsqueeze", right, [3]), axis=3)
            turned = self.op("Reshape", both, self.op("Concat", [0, heads], twice, axis=0))
        else:
            turned = self.op("Concat", left, right, axis=2)
        return self.op("Concat", turned, rest, axis=2)

    def _both(self, caches: Any) -> list[Any]:
        scales = self.given.get("k_scale"), self.given.get("v_scale")
        return [self._gathered(*each) for each in zip(caches, scales, strict=True)]

    def _written(self, cache: Any, new: Any, scale: Any) -> Any:
        table = self.op("Cast", self.given["table"], to=7)
        inside = self.op("Div", self.positions, self.block)
        place = self.op("Concat", *(self.op("Unsqueeze", v, [1]) for v in (self.rows, inside)), axis=1)
        blocks = self.op("Mul", self.op("GatherND", table, place), self.block)
        slots = self.op("Add", blocks, self.op("Mod", self.positions, self.block))
        flat = self.op("Reshape", cache, [-1, self.kv_heads, self.width])
        if scale is not None:
            scaled = self.op("Round", self.op("Div", new, self.op("Reshape", scale, [self.kv_heads, self.width])))
            new = self.op("Cast", self.op("Min", self.op("Max", scaled, -128.0), 127.0), to=3)
        flat = self.op("ScatterND", flat, self.op("Unsqueeze", slots, [1]), new)
        return self.op("Reshape", flat, [-1, self.block, self.kv_heads, self.width])

    def _gathered(self, cache: Any, scale: Any) -> Any:
        """[tokens, kv_heads, 1, positions, width]."""
        table = self.op("Gather", self.op("Cast", self.given["table"], to=7), self.rows)
        seen = self.op("Gather", cache, table)
        seen = self.op("Reshape", seen, [0, -1, self.kv_heads, self.width])
        seen = self.op("Transpose", seen, perm=[0, 2, 1, 3])
        if scale is not None:
            scale = self.op("Reshape", scale, [1, self.kv_heads, 1, self.width])
            seen = self.op("Mul", self.op("Cast", seen, to=1), scale)
        return self.op("Unsqueeze", seen, [2])

    def _attended(self, query: Any, keys: Any, values: Any) -> Any:
        group = self.heads // self.kv_heads
        query = self.op("Reshape", query, [-1, self.kv_heads, group, 1, self.width])
        scores = self.op("Mul", self.op("MatMul", query, self.op("Transpose", keys, perm=[0, 1, 2, 4, 3])), self.scale)
        if self.softcap:
            scores = self.op("Mul", self.op("Tanh", self.op("Div", scores, self.softcap)), self.softcap)
        length = self.op("Squeeze", self.op("Slice", self.op("Shape", keys), [3], [4]), [0])
        places, position = self.op("Range", 0, length, 1), self.op("Unsqueeze", self.positions, [1])
        hidden = self.op("Greater", self.op("Unsqueeze", places, [0]), position)
        if self.window > 0:
            oldest = self.op("Sub", position, self.window - 1)
            hidden = self.op("Or", hidden, self.op("Less", self.op("Unsqueeze", places, [0]), oldest))
        scores = self.op("Where", self.op("Unsqueeze", hidden, [1, 2, 3]), float("-inf"), scores)
        if self.given.get("sink") is not None:
            sink = self.op("Reshape", self.given["sink"], [1, self.kv_heads, group, 1, 1])
            shape = self.op("Concat", self.op("Slice", self.op("Shape", scores), [0], [4]), [1], axis=0)
            scores = self.op("Concat", scores, self.op("Expand", sink, shape), axis=4)
            weights = self.op("Slice", self.op("Softmax", scores, axis=4), [0], [-1], [4])
        else:
            weights = self.op("Softmax", scores, axis=4)
        return self.op("Reshape", self.op("MatMul", weights, values), [-1, self.heads * self.width])


class HostBlocks:
    """BlockMemory in numpy arrays."""

    device = "cpu"

    def __init__(self, tensors: Any, blocks: int, block_tokens: int) -> None:
        self.arrays = [np.zeros((blocks, block_tokens, t.kv_heads, t.head_width), t.dtype) for t in tensors]

    def pointer(self, tensor: int) -> int:
        return int(self.arrays[tensor].ctypes.data)

    def shape(self, tensor: int) -> tuple[int, ...]:
        return self.arrays[tensor].shape

    def copy(self, copies: Any) -> None:
        for array in self.arrays:
            for source, target in copies:
                array[target] = array[source]

    def read(self, blocks: Any, start: int, stop: int) -> list[Any]:
        flat = (array[blocks].reshape(-1, *array.shape[2:]) for array in self.arrays)
        return [part[start:stop].swapaxes(0, 1).copy() for part in flat]

    def write(self, blocks: Any, start: int, block: Any) -> None:
        for array, part in zip(self.arrays, block, strict=True):
            positions = np.arange(start, start + part.shape[1])
            size = array.shape[1]
            array[np.array(blocks)[positions // size], positions % size] = part.swapaxes(0, 1)

    def close(self) -> None:
        self.arrays = []


def paged_on_cpu(bundle: Path, output: Path, block_tokens: int = 16) -> Path:
    """A copy of a bundle for the CPU with a paged graph in it, PagedAttention replaced by its stand-in."""
    import shutil
    from dataclasses import replace

    from exporter.manifest import describe_graph
    from exporter.paged import make_paged
    from quantizer.graph.graphs import load_graphs
    from runtime.bundle.bundle import open_bundle, write_manifest

    shutil.copytree(bundle, output)
    manifest = open_bundle(output).manifest
    model = load_graphs(open_bundle(output)).models[manifest.graphs.prefill.file]
    stand_in(make_paged(model, block_tokens).graph)
    ir.save(model, output / "paged.onnx")
    graphs = replace(manifest.graphs, paged=describe_graph(model.graph, "paged.onnx"))
    write_manifest(output, replace(manifest, graphs=graphs, files={}))
    return output
