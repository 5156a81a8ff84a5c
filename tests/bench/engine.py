"""What the engine promises, measured: `python tests/bench/engine.py BUNDLE [--kv8 BUNDLE2] [--only NAME ...]`.

Ratios of interleaved runs in one process; a table of figures, and JSON with --json FILE.
"""

import argparse
import gc
import json
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from runtime import LLM, EngineOptions, SamplingParams
from runtime.batch import Batch
from runtime.bench.load import LoadBench
from runtime.bundle.bundle import open_bundle
from runtime.ort.executor import OnnxExecutor

Figures = dict[str, float]
TEXT = """The harbour master wrote the arrivals of the day into the book: the ship from the north with timber, the ship
from the south with salt and oil, two boats of the fishermen, and late in the evening a small vessel without a flag.
"""


def resident_memory() -> int:
    """Bytes of this process that are in RAM now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def loaded(bundle: Path, **options: object) -> Iterator[LLM]:
    llm = LLM(bundle, options=EngineOptions(**options))  # type: ignore[arg-type]
    try:
        yield llm
    finally:
        llm.close()


def prompt(length: int, seed: int = 0, most: int = 40_000) -> list[int]:
    return np.random.default_rng(seed).integers(3, most, length).tolist()


def greedy(tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)


def concurrency(bundle: Path) -> Figures:
    """1 to 16 users with uneven requests: tokens per second, and the pace of answers beside a prompt of 2,000."""
    with loaded(bundle, context=4096, max_concurrency=17) as llm:
        bench = LoadBench(llm, prompt=40, tokens=96)
        loads = {load.concurrency: load for load in bench.loads((1, 2, 4, 8, 16), 3)}
        paces = [bench.pace(readers, 2000) for readers in (1, 8)]
    figures = {f"{users} users, tokens/s": load.tokens_per_second for users, load in loads.items()}
    figures |= {f"{users} users, p95 gap, ms": 1e3 * load.token_seconds for users, load in loads.items()}
    figures["8 users / 1 user"] = loads[8].tokens_per_second / loads[1].tokens_per_second
    figures["8 users / 1 user, decode steps"] = 8 * loads[1].median_token_seconds / loads[8].median_token_seconds
    for pace in paces:
        figures[f"{pace.readers} readers, p95 gap, ms"] = 1e3 * pace.idle_seconds
        figures[f"{pace.readers} readers, p95 beside 2,000 / idle"] = pace.busy_seconds / pace.idle_seconds
        figures[f"{pace.readers} readers, longest gap beside 2,000, ms"] = 1e3 * pace.longest_seconds
        figures[f"{pace.readers} readers, first token of the 2,000, s"] = pace.first_token_seconds
    return figures


def refill(bundle: Path) -> Figures:
    """64 requests of 8 to 256 tokens through 8 rows, against the time that its own steps would need if packed."""
    draw = random.Random(0)
    with loaded(bundle, max_concurrency=8) as llm:
        lengths = [draw.randint(8, 256) for _ in range(64)]
        requests = [llm.model.request(prompt(8, i), greedy(n)) for i, n in enumerate(lengths)]
        executor = llm.model.engine.core.executor
        decode, prefill = executor.decode, executor.prefill
        steps: list[tuple[int, float]] = []
        fills: list[float] = []

        def timed_decode(ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
            started = time.perf_counter()
            logits = decode(ids, lengths)
            steps.append((len(ids), time.perf_counter() - started))
            return logits

        def timed_prefill(row: int, past: int, ids: np.ndarray) -> np.ndarray:
            started = time.perf_counter()
            logits = prefill(row, past, ids)
            fills.append(time.perf_counter() - started)
            return logits

        executor.decode, executor.prefill = timed_decode, timed_prefill  # type: ignore[method-assign]
        started = time.perf_counter()
        Batch(llm.model).run(requests)
        took = time.perf_counter() - started
    full = statistics.mean(seconds for rows, seconds in steps if rows == 8)
    needed = (sum(lengths) - 64) / 8
    packed = needed * full + sum(fills)
    return {
        "time / perfect packing": took / packed,
        "steps / perfect packing": len(steps) / needed,
        "mean rows of 8": sum(rows for rows, _ in steps) / len(steps),
        "outside ONNX Runtime": 1 - (sum(s for _, s in steps) + sum(fills)) / took,
    }


def memory(bundle: Path) -> Figures:
    """Resident memory: idle rows, a short prompt, and many short requests."""
    with loaded(bundle, max_concurrency=1) as llm:
        llm.generate(list(range(10)), greedy(1))
        one_row = resident_memory()
    gc.collect()
    before = resident_memory()
    with loaded(bundle, max_concurrency=16) as llm:
        llm.generate(list(range(10)), greedy(1))
        sixteen_rows = resident_memory()
        rows = llm.model.engine.core.executor.memory  # type: ignore[attr-defined]
        fresh = resident_memory()
        rows.write(15, 0, rows.read(0, 0, 10))
        ten_tokens = resident_memory() - fresh
        rows.free_slot(15, 0)
        marks = {}
        most = llm.model.bundle.manifest.architecture.vocab_size
        for number in range(20, 10_001, 20):
            prompts = [prompt(4 + seed % 13, seed, most) for seed in range(number, number + 20)]
            llm.generate(prompts, greedy(1 + number // 20 % 3))
            if number in (500, 10_000):
                marks[number] = resident_memory()
    return {
        "16 idle rows instead of 1, MB": (sixteen_rows - before - (one_row - before)) / 1e6,
        "ten tokens, MB": ten_tokens / 1e6,
        "RSS after 10,000 requests / after 500": marks[10_000] / marks[500],
    }


def prefix(bundle: Path) -> Figures:
    """Time to first token behind a shared beginning of 1,500 tokens."""
    shared = prompt(1500)
    times: dict[str, list[float]] = {"cold": [], "warm": []}
    with loaded(bundle, context=4096, max_concurrency=2, prefix_cache=1 << 30) as llm:
        llm.generate([*shared, 1, 2, 3], greedy(1))
        for number in range(4):
            for kind in times:
                llm.generate([prompt(100, 50 + number), prompt(100, 90 + number)], greedy(4))  # takes both rows
                head = shared if kind == "warm" else prompt(1500, 200 + number)
                completion = llm.generate([*head, number + 10, 11, 12], greedy(1))
                times[kind].append(completion.timings.time_to_first_token or 0)
    cold, warm = (statistics.median(found) for found in times.values())
    return {"cold, s": cold, "warm, s": warm, "warm / cold": warm / cold}


def lookup(bundle: Path) -> Figures:
    """Tokens per second with and without drafts, on copying a text, and whether the tokens are the same."""
    ask = [{"role": "user", "content": f"Repeat this text exactly, but write 'timber' as 'wood':\n\n{TEXT}"}]
    rates: dict[str, list[float]] = {"plain": [], "drafts": []}
    tokens: dict[str, tuple[int, ...]] = {}
    with loaded(bundle, context=2048) as plain, loaded(bundle, context=2048, speculation=16) as drafting:
        for _ in range(3):
            for kind, llm in {"plain": plain, "drafts": drafting}.items():
                completion = llm.chat(ask, SamplingParams(max_tokens=120, temperature=0))
                seconds = (completion.timings.finished or 0) - (completion.timings.first_token or 0)
                rates[kind].append((len(completion.token_ids) - 1) / seconds)
                tokens[kind] = completion.token_ids
    before, after = (statistics.median(found) for found in rates.values())
    return {"plain, tokens/s": before, "drafts / plain": after / before, "same": tokens["plain"] == tokens["drafts"]}


def kv8(bundle: Path, other: Path) -> Figures:
    """Decode at 4,096 tokens behind: int8 keys and values against float ones."""
    executors = [OnnxExecutor(open_bundle(path), slots=1, context=4200) for path in (bundle, other)]
    ids = np.array(prompt(4096))
    for executor in executors:
        for start in range(0, 4096, 512):
            executor.prefill(0, start, ids[start : start + 512])
    times: list[list[float]] = [[], []]
    for _ in range(30):
        for executor, found in zip(executors, times, strict=True):
            started = time.perf_counter()
            executor.decode(ids[:1], np.array([4096]))
            found.append(time.perf_counter() - started)
    before, after = (statistics.median(found) for found in times)
    return {"float, ms": 1e3 * before, "int8, ms": 1e3 * after, "float / int8": before / after}


CASES: dict[str, Callable[[Path], Figures]] = {
    "concurrency": concurrency,
    "refill": refill,
    "prefix": prefix,
    "lookup": lookup,
    "memory": memory,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--kv8", type=Path, help="The same bundle with int8 keys and values.")
    parser.add_argument("--only", nargs="*", choices=[*CASES, "kv8"], help="Cases to run.")
    parser.add_argument("--json", type=Path, help="Write the figures here too.")
    chosen = parser.parse_args()
    everything: dict[str, Figures] = {}
    for name, case in CASES.items():
        if not chosen.only or name in chosen.only:
            everything[name] = _show(name, case(chosen.bundle))
    if chosen.kv8 and (not chosen.only or "kv8" in chosen.only):
        everything["kv8"] = _show("kv8", kv8(chosen.bundle, chosen.kv8))
    if chosen.json:
        chosen.json.write_text(json.dumps(everything, indent=1))


def _show(name: str, figures: Figures) -> Figures:
    for label, value in figures.items():
        print(f"{name:12} {label:40} {value:10.3f}", flush=True)
    return figures


if __name__ == "__main__":
    main()
