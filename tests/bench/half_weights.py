"""A float bundle whose weights are stored in bfloat16, with a Cast each, against one in float32 as `export` writes it.

python tests/bench/half_weights.py --layers 30         # the shape of SmolLM2-135M, random weights, processes by turns

ONNX Runtime folds the Casts when it loads: what was mapped from the file becomes memory of the process.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx_ir as ir
from scale import SHAPES, write_checkpoint

_SMALL = 4096  # bytes: norms stay as they are
_ROUNDS = 5


def convert(source: Path, target: Path) -> None:
    """The decode graph of `source`, its matrices in bfloat16."""
    target.mkdir()
    model = ir.load(source / "decode.onnx")
    with (target / "weights.bin").open("wb") as file:
        for value in list(model.graph.initializers.values()):
            tensor = value.const_value
            if tensor.dtype != ir.DataType.FLOAT or tensor.nbytes < _SMALL:
                value.const_value = ir.tensor(tensor.numpy().copy(), name=value.name)
                continue
            file.write(bytes(-file.tell() % 4096))
            _store(model.graph, value, file, target)
    ir.save(model, target / "decode.onnx")


def _store(graph: ir.Graph, value: ir.Value, file, folder: Path) -> None:
    kind, name, shape = ir.DataType.BFLOAT16, f"{value.name}.half", value.const_value.shape
    array = value.const_value.numpy().astype(kind.numpy())
    stored = ir.Value(name=name, type=ir.TensorType(kind), shape=shape)
    stored.const_value = ir.ExternalTensor(
        "weights.bin", file.tell(), array.nbytes, kind, shape=shape, name=name, base_dir=folder
    )
    file.write(array.view(np.uint8).tobytes())
    cast = ir.node("Cast", [stored], {"to": int(ir.DataType.FLOAT)})
    graph.initializers.pop(value.name)
    graph.initializers[name] = stored
    value.replace_all_uses_with(cast.outputs[0])
    graph.insert_before(graph[0], cast)


def run(folder: Path) -> dict[str, float]:
    """Load and step, in this process: seconds, and MiB of its own and of mapped files."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    before, started, cpu = _memory(), time.perf_counter(), time.process_time()
    session = onnxruntime.InferenceSession(folder / "decode.onnx", options, providers=["CPUExecutionProvider"])
    figures = {"load_s": time.perf_counter() - started, "load_cpu_s": time.process_time() - cpu}
    figures |= {name: after - before[name] for name, after in _memory().items()}
    feeds = {one.name: _empty(one) for one in session.get_inputs()}
    seconds = []
    for _ in range(20):
        started = time.perf_counter()
        session.run(None, feeds)
        seconds.append(time.perf_counter() - started)
    return figures | {"step_ms": 1e3 * statistics.median(seconds)}


def _empty(one) -> np.ndarray:
    sizes = [size if isinstance(size, int) else 1 for size in one.shape]
    kind = {"tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(float)": np.float32}[one.type]
    return np.ones((), kind) if not sizes else np.zeros(sizes, kind)


def _memory() -> dict[str, float]:
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    names = {"RssAnon:": "own_mib", "RssFile:": "mapped_mib"}
    return {names[words[0]]: int(words[1]) / 1024 for words in lines if words and words[0] in names}


def main() -> None:
    """Print the medians of both as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="llama-135m")
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        print(json.dumps(run(chosen.child)))
        return
    from exporter import ExportOptions, export

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_checkpoint(folder / "checkpoint", SHAPES[chosen.shape] | {"num_hidden_layers": chosen.layers})
        export(folder / "checkpoint", folder / "float32", ExportOptions(verify="none"))
        convert(folder / "float32", folder / "bfloat16")
        found: dict[str, list[dict[str, float]]] = {"float32": [], "bfloat16": []}
        for _ in range(_ROUNDS):
            for kind, figures in found.items():
                command = [sys.executable, __file__, "--child", str(folder / kind)]
                figures.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
        for kind, rounds in found.items():
            medians = {key: round(statistics.median(one[key] for one in rounds), 2) for key in rounds[0]}
            print(json.dumps({"weights": kind} | medians))


if __name__ == "__main__":
    main()
