"""Measure the kernels of this machine: one product with one row, over more weights than its caches hold."""

import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from runtime.host.machine import usable_cores
from runtime.ort.session import onnxruntime, translated

from ..progress import Progress
from ..storage.scheme import BITS, GROUP_SIZES
from .table import THIS_MACHINE, CostTable, KernelCost

_COUNTED = 64  # products of one run that tells what repeated channels add
_REPEATED = 64  # channels
_MICROSOFT = "com.microsoft"
Arrays = dict[str, npt.NDArray[Any]]
Point = tuple[int, float]  # weights, and nanoseconds of one call
Node = Callable[[ir.Graph, ir.Value, int, int, int], ir.Node]


@dataclass(frozen=True)
class Effort:
    """How thoroughly kernels are measured.

    Attributes:
        seconds: that each kernel runs in each shape and round, after one run that does not count.
        rounds: in which all kernels take turns: a machine that is busy for a while then does not decide their figures.
        footprint: bytes that the products of one run read together; more than second caches hold.
        shapes: rows and inputs.
    """

    seconds: float = 0.1
    rounds: int = 5
    footprint: int = 96 << 20
    shapes: tuple[tuple[int, int], ...] = ((576, 576), (2048, 2048), (6144, 2048))


def measure_kernels(progress: Progress, threads: int | None = None, effort: Effort = Effort()) -> CostTable:
    """The costs of this machine's CPU kernels: the least times of several rounds, in which all kernels take turns.

    Args:
        progress: is told of each round and kernel.
        threads: by default, the cores that may be used.
        effort: how thoroughly.
    """
    threads = threads or usable_cores()
    kinds = [(32, 0), *((bits, size) for bits in BITS for size in GROUP_SIZES)]
    points: dict[tuple[int, int], list[Point]] = {}
    extras = [float("inf")] * 4
    for done, (_, (bits, size)) in enumerate(product(range(effort.rounds), kinds)):
        progress(f"measuring {bits} bits g{size}", done, effort.rounds * len(kinds))
        now = [_measured(bits, size, shape, threads, effort) for shape in effort.shapes]
        points[bits, size] = [min(pair) for pair in zip(now, points.get((bits, size), now), strict=True)]
        if (bits, size) == kinds[0]:
            new = [*_repeat(threads, effort.seconds), *(_gather(width, threads, effort.seconds) for width in BITS)]
            extras = [min(pair) for pair in zip(extras, new, strict=True)]
    kernels = [
        KernelCost("MatMulNBits" if size else "MatMul", bits, size, *fit(found), _bytes_read(bits, size))
        for (bits, size), found in points.items()
    ]
    kernels.append(KernelCost("Repeat", 0, 0, 0.0, max(extras[1] - extras[0], 0.0), 0.0))
    kernels += [
        KernelCost("GatherBlockQuantized", bits, 32, 0.0, ns, 0.0) for bits, ns in zip(BITS, extras[2:], strict=True)
    ]
    return CostTable(
        THIS_MACHINE, "measured", processor_name(), str(onnxruntime().__version__),
        datetime.now(UTC).date().isoformat(), threads,
        f"least time of runs over {effort.footprint >> 20} MiB, one row, accuracy level 4, 4 bits with zero points",
        tuple(kernels),
    )  # fmt: skip


def fit(points: list[Point]) -> tuple[float, float]:
    """Nanoseconds a weight and a call: the slope from the smallest to the largest product, and what is left."""
    (few, short), (many, long) = min(points), max(points)
    slope = max((long - short) / (many - few), 0.0)
    return slope, max(short - slope * few, 0.0)


def processor_name() -> str:
    """The processor as the system calls it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def _bytes_read(bits: int, size: int) -> float:
    """Codes, and for each group a float scale and a float sum of its codes."""
    return 4.0 if not size else bits / 8 + 8 / size


def _measured(bits: int, size: int, shape: tuple[int, int], threads: int, effort: Effort) -> Point:
    """Of packed products; of floats where `size` is 0."""
    rows, inputs = shape
    weights = rows * -(-inputs // max(size, 1)) * max(size, 1)
    count = max(2, int(effort.footprint / (weights * _bytes_read(bits, size))))
    graph, x = _graph(inputs)
    for number in range(count):
        _append(
            graph, _float_product(graph, x, rows, number) if not size else _product(graph, x, rows, bits, size, number)
        )
    return weights, _least_time(graph, inputs, threads, effort.seconds) / count


def _repeat(
    threads: int, seconds: float, inputs: int = 576, rows: int = 1536, count: int = _COUNTED
) -> tuple[float, float]:
    """Nanoseconds of a product over repeated inputs as they come, and with the Gather and Concat that repeat them."""
    times = []
    for joined in (False, True):
        graph, x = _graph(inputs if joined else inputs + _REPEATED)
        for number in range(count):
            wide = _repeated(graph, x, number) if joined else x
            _append(graph, _product(graph, wide, rows, 4, 32, number, inputs + _REPEATED))
        times.append(_least_time(graph, _inputs(x), threads, seconds) / count)
    return times[0], times[1]


def _repeated(graph: ir.Graph, x: ir.Value, number: int) -> ir.Value:
    """Other inputs for each product: ONNX Runtime computes equal nodes once."""
    channels = [number + i for i in range(_REPEATED)]
    index = _initializer(graph, ir.tensor(channels, ir.DataType.INT64, name=f"index{number}"))
    picked = ir.node("Gather", [x, index], {"axis": -1})
    wide = ir.node("Concat", [x, picked.outputs[0]], {"axis": -1})
    graph.extend([picked, wide])
    return wide.outputs[0]


def _gather(bits: int, threads: int, seconds: float, rows: int = 32768, inputs: int = 1024) -> float:
    """Nanoseconds of one row of an embedding, in groups of 32."""
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 21, _MICROSOFT: 1}, name="gather")
    ids = ir.Value(name="x", type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([1, 1]))
    graph.inputs.append(ids)
    codes, scales, _ = _packed(graph, rows, inputs, bits, 32, 0, three=True)
    attributes = {"bits": bits, "block_size": 32, "gather_axis": 0, "quantize_axis": 2}
    _append(graph, ir.node("GatherBlockQuantized", [codes, ids, scales], attributes, domain=_MICROSOFT))
    return _least_time(graph, 0, threads, seconds)


def _graph(inputs: int) -> tuple[ir.Graph, ir.Value]:
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([1, inputs]))
    return ir.Graph([x], [], nodes=[], opset_imports={"": 21, _MICROSOFT: 1}, name="kernels"), x


def _append(graph: ir.Graph, node: ir.Node) -> None:
    node.outputs[0].name = f"y{len(graph.outputs)}"
    node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    graph.append(node)
    graph.outputs.append(node.outputs[0])


def _float_product(graph: ir.Graph, x: ir.Value, rows: int, number: int) -> ir.Node:
    weight = np.full((_inputs(x), rows), 0.01, np.float32)
    return ir.node("MatMul", [x, _initializer(graph, ir.tensor(weight, name=f"w{number}"))])


def _product(
    graph: ir.Graph, x: ir.Value, rows: int, bits: int, size: int, number: int, inputs: int | None = None
) -> ir.Node:
    inputs = inputs or _inputs(x)
    codes, scales, zeros = _packed(graph, rows, inputs, bits, size, number)
    attributes = {"K": inputs, "N": rows, "bits": bits, "block_size": size, "accuracy_level": 4}
    wanted = [x, codes, scales] if zeros is None else [x, codes, scales, zeros]
    return ir.node("MatMulNBits", wanted, attributes, domain=_MICROSOFT)


def _packed(
    graph: ir.Graph, rows: int, inputs: int, bits: int, size: int, number: int, *, three: bool = False
) -> tuple[ir.Value, ir.Value, ir.Value | None]:
    groups = -(-inputs // size)
    codes = np.full((rows, groups, size * bits // 8), 0x5A, np.uint8)
    scales = np.full((rows, groups, 1) if three else (rows, groups), 0.01, np.float32)
    zeros = np.full((rows, -(-groups * bits // 8)), 0x77, np.uint8)
    first = _initializer(graph, ir.tensor(codes, name=f"codes{number}"))
    second = _initializer(graph, ir.tensor(scales, name=f"scales{number}"))
    third = None if three or bits == 8 else _initializer(graph, ir.tensor(zeros, name=f"zeros{number}"))
    return first, second, third


def _initializer(graph: ir.Graph, tensor: ir.TensorProtocol) -> ir.Value:
    value = ir.Value(
        name=tensor.name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()), const_value=tensor
    )
    graph.register_initializer(value)
    return value


def _inputs(x: ir.Value) -> int:
    assert x.shape is not None
    return int(x.shape[1])  # type: ignore[arg-type]  # static


def _least_time(graph: ir.Graph, inputs: int, threads: int, seconds: float) -> float:
    """Nanoseconds of the fastest run."""
    module = onnxruntime()
    options = module.SessionOptions()
    options.intra_op_num_threads = threads
    feeds = {"x": np.zeros((1, 1), np.int64) if not inputs else np.full((1, inputs), 0.5, np.float32)}
    with translated("measuring a kernel"):
        data = ir.to_proto(ir.Model(graph, ir_version=10)).SerializeToString()
        session = module.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        return min(_times(lambda: session.run(None, feeds), seconds))


def _times(run: Callable[[], object], seconds: float) -> Iterator[float]:
    run()
    moments = [time.perf_counter_ns()]
    while moments[-1] - moments[0] < seconds * 1e9 or len(moments) < 4:
        run()
        moments.append(time.perf_counter_ns())
    return (float(after - before) for before, after in pairwise(moments))
