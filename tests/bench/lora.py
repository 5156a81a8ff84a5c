"""What LoRA adapters at run time cost: a decode step and a prefill with and without them, interleaved, as ratios.

`python tests/bench/lora.py BUNDLE [--rank 16] [--rows 1,8] [--prompt 128] [--rounds 7]`: BUNDLE is any bundle for the
CPU that `onnxlm export BUNDLE --lora-inputs` takes. Compared are the bundle itself, the one with inputs and no adapter,
one adapter in all rows, and four in turn; the adapters are random, on all linear layers.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from exporter.export import ExportOptions, export
from runtime.adapters.fitting import FittedAdapter, adapter_ports, kind_of
from runtime.bundle.bundle import open_bundle
from runtime.ort.executor import OnnxExecutor

WIDTH = {"qkv_proj": 3, "gate_up_proj": 2}  # modules side by side


def random_adapter(bundle, rank, seed):
    rng = np.random.default_rng(seed)
    sizes = adapter_ports(bundle)
    width = {kind_of(name): rank * WIDTH.get(name.rpartition(".")[2], 1) for name in sizes}
    matrices = {
        name: tuple(
            rng.standard_normal(shape).astype(np.float32) * 0.01
            for shape in ((inputs, width[kind_of(name)]), (width[kind_of(name)], outputs))
        )
        for name, (inputs, outputs) in sizes.items()
    }
    return FittedAdapter(f"a{seed}", matrices, width)


def decode_seconds(executor, rows, context, steps=8):
    ids, lengths = np.zeros(rows, np.int64), np.full(rows, context, np.int32)
    started = time.perf_counter()
    for _ in range(steps):
        executor.decode(ids, lengths)
    return (time.perf_counter() - started) / steps


def prefill_seconds(executor, tokens):
    started = time.perf_counter()
    executor.prefill(0, 0, np.arange(tokens) % 1000)
    return time.perf_counter() - started


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--rows", default="1,8")
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=7)
    chosen = parser.parse_args()
    rows = [int(part) for part in chosen.rows.split(",")]
    slots, context = max(rows), chosen.prompt + 16
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "lora"
        export(chosen.bundle, folder, ExportOptions(lora_inputs=True))
        plain, with_inputs = open_bundle(chosen.bundle), open_bundle(folder)
        adapters = [random_adapter(with_inputs, chosen.rank, seed) for seed in range(4)]
        shared = OnnxExecutor(with_inputs, "cpu", slots=slots, context=context, adapters=adapters)
        executors = {
            "the bundle itself": (OnnxExecutor(plain, "cpu", slots=slots, context=context), None),
            "inputs, no adapter": (shared, [0]),
            "one adapter": (shared, [1]),
            "four adapters": (shared, [1, 2, 3, 4]),
        }
        for count in [*rows, 0]:
            times = {name: [] for name in executors}
            for turn in range(chosen.rounds + 1):
                for name, (executor, cycle) in executors.items():
                    if cycle:
                        executor.select_adapters([cycle[i % len(cycle)] for i in range(count or 1)])
                    spent = (
                        decode_seconds(executor, count, chosen.prompt)
                        if count
                        else prefill_seconds(executor, chosen.prompt)
                    )
                    if turn:
                        times[name].append(spent)
            base = statistics.median(times["the bundle itself"])
            what = f"decode, {count} rows" if count else f"prefill of {chosen.prompt}"
            for name, spent in times.items():
                middle = statistics.median(spent)
                print(f"{what:16} {name:20} {middle * 1e3:9.2f} ms  {middle / base:5.2f}x")


if __name__ == "__main__":
    main()
