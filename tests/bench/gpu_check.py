"""Check and measure the CUDA provider with one model: parity with the CPU, batch equality, and speed by batch.

    python tests/bench/gpu_check.py --model demo/SmolLM2-135M-Instruct.Q4_1.gguf --work FOLDER --json gpu.json
    python tests/bench/gpu_check.py ... --no-numerics     where nothing is computed (tests/fakecuda)

Prints a table and writes the same as JSON. What cannot run is skipped by name; what is wrong makes the exit code 1.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from exporter.export import export
from exporter.options import ExportOptions
from quantizer.calibration.data import split
from quantizer.kv_cache.quantize import quantize_cache
from runtime.bundle.bundle import open_bundle
from runtime.errors import OnnxlmError
from runtime.ort.cuda_check import missing_for_cuda
from runtime.ort.executor import OnnxExecutor
from runtime.ort.session import onnxruntime

PROMPT = 512
BATCHES = (1, 8, 32, 64)
MOST_KL = {"fp16": 0.001, "bf16": 0.02, "int4": 0.02, "int4-kv8": 0.02}  # from the same weights on the CPU
Row = dict[str, Any]


def bundles(model: Path, work: Path) -> Iterator[tuple[str, Path, Path]]:
    """(kind, bundle for CUDA, bundle for the CPU with the same weights)."""
    plain, packed, coded = work / "cpu", work / "cpu-int4", work / "cpu-int4-kv8"
    _exported(model, plain)
    _exported(model, packed, quantize="int4", method="rtn")
    if not coded.exists():
        ids = np.random.default_rng(0).integers(10, 1000, (6, 64))
        quantize_cache(packed, coded, 8, split("random", ids))
    for kind, source, dtype in (
        ("fp16", plain, "float16"), ("bf16", plain, "bfloat16"), ("int4", packed, "float16"),
        ("int4-kv8", coded, "float16"),
    ):  # fmt: skip
        _exported(source, work / kind, target="cuda", dtype=dtype)
        yield kind, work / kind, source


def _exported(source: Path, output: Path, **options: Any) -> None:
    if not output.exists():
        export(source, output, ExportOptions(**({"verify": "none"} | options)))


def logits_of(bundle: Path, provider: Any) -> np.ndarray:
    """Of 64 positions, with a prompt before them."""
    ids = np.random.default_rng(1).integers(10, 1000, 128)
    with closing(OnnxExecutor(open_bundle(bundle), provider, slots=1, context=1024)) as executor:
        executor.prefill_without_logits(0, 0, ids[:64])
        return np.array(executor.all_logits(0, 64, ids[64:]), np.float64)


def divergence(reference: np.ndarray, found: np.ndarray) -> float:
    """Mean KL in nats."""
    logs = [x - np.log(np.exp(x - (most := x.max(-1, keepdims=True))).sum(-1, keepdims=True)) - most
            for x in (reference, found)]  # fmt: skip
    return float((np.exp(logs[0]) * (logs[0] - logs[1])).sum(-1).mean())


def batch_difference(bundle: Path) -> float:
    """The largest difference of logits between a slot alone and the same slot among eight."""
    with closing(OnnxExecutor(open_bundle(bundle), "cuda", slots=8, context=1024)) as executor:
        for slot in range(8):
            executor.prefill(slot, 0, np.arange(10 + slot, 40 + 2 * slot))
        ids, lengths = np.full(8, 7), np.array([30 + slot for slot in range(8)], np.int32)
        together = executor.decode(ids, lengths).copy()
        alone = executor.decode(ids[:1], lengths[:1]).copy()
    return float(np.abs(together[:1] - alone).max())


def speeds(bundle: Path) -> Row:
    """Milliseconds of a prefill and of decode steps by batch size, and gigabytes of weights read a second."""
    row: Row = {}
    weights = (bundle / "weights.bin").stat().st_size
    with closing(OnnxExecutor(open_bundle(bundle), "cuda", slots=max(BATCHES), context=2 * PROMPT)) as executor:
        ids = np.arange(PROMPT) % 1000 + 10
        row["prefill_ms"] = _milliseconds(lambda _: executor.prefill(0, 0, ids), 5)
        for batch in BATCHES:
            tokens = np.full(batch, 7)
            row[f"decode_{batch}_ms"] = _milliseconds(
                lambda i, tokens=tokens: executor.decode(tokens, np.full(len(tokens), PROMPT + i, np.int32)), 40
            )
        row["weights_gb_s"] = weights / 1e6 / row["decode_1_ms"]
    return row


def _milliseconds(run: Any, count: int) -> float:
    run(0), run(1)
    times = []
    for i in range(count):
        start = time.perf_counter()
        run(i + 2)
        times.append(time.perf_counter() - start)
    return float(np.median(times) * 1e3)


def check(kind: str, bundle: Path, source: Path, numerics: bool) -> Row:
    """One row of the table; `problem` says what is wrong."""
    row: Row = {"kind": kind}
    try:
        if numerics:
            row["kl"] = divergence(logits_of(source, "cpu"), logits_of(bundle, "cuda"))
            row["batch_difference"] = batch_difference(bundle)
        else:
            assert logits_of(bundle, "cuda").shape[0] == 64
            batch_difference(bundle)
        row |= speeds(bundle)
    except OnnxlmError as error:
        row["problem"] = str(error)
    if row.get("kl", 0) > MOST_KL[kind]:
        row["problem"] = f"KL {row['kl']:.4f} from the CPU is more than {MOST_KL[kind]}"
    return row


def main() -> int:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="folder for bundles; what is there is used")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--no-numerics", action="store_true", help="where CUDA computes nothing")
    options = parser.parse_args()
    if missing := missing_for_cuda(onnxruntime()):
        print(f"skipped: {missing}")
        return 0
    options.work.mkdir(parents=True, exist_ok=True)
    rows = [check(*made, not options.no_numerics) for made in bundles(options.model, options.work)]
    for row in rows:
        print(
            "  ".join(f"{name} {value:.4g}" if isinstance(value, float) else str(value) for name, value in row.items())
        )
    if options.json:
        options.json.write_text(json.dumps({"onnxruntime": onnxruntime().__version__, "rows": rows}, indent=1))
    return int(any("problem" in row for row in rows))


if __name__ == "__main__":
    sys.exit(main())
