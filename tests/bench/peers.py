"""Our bundles beside onnxruntime-genai, transformers, llama.cpp and OpenVINO GenAI, taking turns.

    pip install onnxruntime-genai          # beside onnxlm; both use the same onnxruntime
    python tests/bench/peers.py --source SmolLM2-135M-Instruct.Q4_1.gguf --fp32 demo/fp32 --int4 demo/int4
    python tests/bench/peers.py --int4 demo/int4 --llama-bin llama.cpp/build/bin --gguf smol-q4_0.gguf \\
        --prompts 128 512 --batches 1 4 8 16 --markdown docs/performance.md

llama.cpp runs in processes of its own (tests/bench/llama_cpp.py says how to build it), OpenVINO GenAI with --openvino
on the same --gguf files. --markdown writes the tables, with the machine, between two marks of a document. A peer that
is not installed is left out. The genai models are built once from the source's weights, with the peer's own builder at
its defaults (int4: block size 32, accuracy level 4), and kept in --cache. Every round measures every engine
once, A B C D A B C D …; --pasts puts decode behind more tokens, such as 4096 and 16384. "MB a token" is what a
decode step of one row reads of weights (ours: packed for this processor, as `onnxlm prepare` stores it; llama.cpp: the
file), and GB/s is that times tokens per second. The figures are medians over the rounds, and the ratios are medians of
each round's ratio.

"uneven" is what a service sees: 32 requests that want 8 to 128 tokens, eight at a time. Ours go through the engine,
which refills a row as soon as its answer ends; the peer runs batches of eight, each until its longest answer has ended.
Only wanted tokens count, and the time is that of everything, prompts included.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import numpy as np
from llama_cpp import LlamaCpp
from openvino_genai_peer import OpenVino
from performance_page import write_section

PROMPT, TOKENS, PROMPTS, BATCHES = 128, 32, (128,), (1, 8)  # decode goes on behind PROMPT tokens
UNEVEN_PROMPT, ROWS, WANTED = 32, 8, np.random.default_rng(7).integers(8, 129, 32)  # tokens of each of 32 requests
SETTLE = 0.3  # seconds in which the threads of the engine before stop spinning; then each gets a short step to wake up


class Engine(Protocol):
    """One model in one program. Both methods return seconds; `ids` is [batch, PROMPT]."""

    def prefill(self, ids: np.ndarray) -> float:
        """Until the first token of every row is chosen."""

    def decode(self, ids: np.ndarray) -> float:
        """TOKENS further tokens of every row, chosen greedily, behind the prompts."""

    def uneven(self, ids: np.ndarray) -> float:
        """A request for each of WANTED, behind the rows of `ids` [requests, UNEVEN_PROMPT], ROWS at a time."""


class Onnxlm:
    """Our step executor, with a greedy choice of the next token."""

    def __init__(self, bundle: Path, prompts: Sequence[int] = PROMPTS, rows: int = ROWS) -> None:
        from runtime import LLM, EngineOptions
        from runtime.bundle.bundle import open_bundle
        from runtime.ort.prepared import weights as prepared

        opened = open_bundle(bundle)
        self.bytes = prepared.packed_bytes(prepared.find(opened) or prepared.make(opened))

        context = max(PROMPT, *prompts) + TOKENS + 2
        self._llm = LLM(bundle, options=EngineOptions(max_concurrency=rows, context=context, prefix_cache=0))
        self._executor = self._llm.model.engine.core.executor  # nobody else uses it while the engine is idle

    def prefill(self, ids: np.ndarray) -> float:
        started = time.perf_counter()
        for row, prompt in enumerate(ids):
            self._executor.prefill(row, 0, prompt).argmax()
        return time.perf_counter() - started

    def decode(self, ids: np.ndarray) -> float:
        self.prefill(ids)
        lengths = np.full(len(ids), ids.shape[1], np.int64)
        last = self._executor.decode(ids[:, -1], lengths).argmax(-1)
        started = time.perf_counter()
        for step in range(1, TOKENS + 1):
            last = self._executor.decode(last, lengths + step).argmax(-1)
        return time.perf_counter() - started

    def uneven(self, ids: np.ndarray) -> float:
        from runtime import SamplingParams
        from runtime.batch import Batch

        params = [SamplingParams(max_tokens=int(n), temperature=0, ignore_eos=True) for n in WANTED]
        started = time.perf_counter()
        requests = [self._llm.model.request(row.tolist(), p) for row, p in zip(ids, params, strict=True)]
        done = Batch(self._llm.model).run(requests)
        seconds = time.perf_counter() - started
        assert [len(completion.token_ids) for completion in done] == WANTED.tolist()
        return seconds


class Genai:
    """onnxruntime-genai's generator over a model folder of its own builder."""

    def __init__(self, folder: Path) -> None:
        import onnxruntime_genai

        self._genai = onnxruntime_genai
        self._model = onnxruntime_genai.Model(str(folder))

    def _start(self, ids: np.ndarray, length: int = PROMPT + TOKENS + 2) -> tuple[Any, float]:
        params = self._genai.GeneratorParams(self._model)
        params.set_search_options(batch_size=len(ids), min_length=length, max_length=length, do_sample=False)
        generator = self._genai.Generator(self._model, params)
        started = time.perf_counter()
        generator.append_tokens(ids.astype(np.int32))
        generator.generate_next_token()
        return generator, time.perf_counter() - started

    def prefill(self, ids: np.ndarray) -> float:
        return self._start(ids, ids.shape[1] + TOKENS + 2)[1]

    def decode(self, ids: np.ndarray) -> float:
        generator, _ = self._start(ids, ids.shape[1] + TOKENS + 2)
        generator.generate_next_token()
        started = time.perf_counter()
        for _ in range(TOKENS):
            generator.generate_next_token()
        return time.perf_counter() - started

    def uneven(self, ids: np.ndarray) -> float:
        started = time.perf_counter()
        for first in range(0, len(ids), ROWS):
            longest = int(WANTED[first : first + ROWS].max())
            generator, _ = self._start(ids[first : first + ROWS], UNEVEN_PROMPT + longest + 1)
            for _ in range(longest - 1):
                generator.generate_next_token()
        return time.perf_counter() - started


class Transformers:
    """transformers in eager mode, float32, with its own cache."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def _start(self, ids: np.ndarray) -> tuple[Any, float]:
        import torch

        started = time.perf_counter()
        with torch.inference_mode():
            out = self._model(torch.from_numpy(ids), use_cache=True, logits_to_keep=1)
            out.logits[:, -1].argmax(-1)
        return out, time.perf_counter() - started

    def prefill(self, ids: np.ndarray) -> float:
        return self._start(ids)[1]

    def decode(self, ids: np.ndarray) -> float:
        import torch

        out, _ = self._start(ids)
        with torch.inference_mode():
            for step in range(TOKENS + 1):
                if step == 1:
                    started = time.perf_counter()
                last = out.logits[:, -1].argmax(-1, keepdim=True)
                out = self._model(last, cache=out.past_key_values, use_cache=True)
        return time.perf_counter() - started

    def uneven(self, ids: np.ndarray) -> float:
        import torch

        started = time.perf_counter()
        for first in range(0, len(ids), ROWS):
            out, _ = self._start(ids[first : first + ROWS])
            with torch.inference_mode():
                for _ in range(int(WANTED[first : first + ROWS].max()) - 1):
                    last = out.logits[:, -1].argmax(-1, keepdim=True)
                    out = self._model(last, cache=out.past_key_values, use_cache=True)
        return time.perf_counter() - started


def engines(options: argparse.Namespace) -> dict[str, Engine]:
    """Every engine that is installed, by name; ours first."""
    rows, lengths = max(ROWS, *options.batches), [*options.prompts, *options.pasts]
    found: dict[str, Engine] = {"onnxlm fp32": Onnxlm(options.fp32, lengths, rows)} if options.fp32 else {}
    found |= {_int4_name(folder): Onnxlm(folder, lengths, rows) for folder in options.int4}
    for model in options.gguf:
        if options.llama_bin:
            found[f"llama.cpp {model.stem}"] = LlamaCpp(options.llama_bin, model, TOKENS)
        if options.openvino:
            found[f"openvino {model.stem}"] = OpenVino(model, TOKENS)
    if options.source is None:
        return found
    wanted = [name for name in ("onnxruntime_genai", "transformers") if find_spec(name) and name not in options.without]
    if not wanted:
        return found
    from exporter.checkpoint import open_checkpoint
    from exporter.verify.reference import reference_model

    checkpoint = open_checkpoint(options.source)
    model = reference_model(checkpoint)
    if "onnxruntime_genai" in wanted:
        for precision in ("fp32", "int4"):
            found[f"genai {precision}"] = Genai(build_genai(checkpoint, model, options.cache, precision))
    if "transformers" in wanted:
        found["transformers fp32"] = Transformers(model)
    return found


def _int4_name(folder: Path) -> str:
    return f"onnxlm int4 {folder.name}"


def build_genai(checkpoint: Any, model: Any, cache: Path, precision: str) -> Path:
    """Run the peer's builder on a Hugging Face folder of the same weights, unless its result is there already."""
    target = cache / f"genai-{precision}"
    if (target / "genai_config.json").exists():
        return target
    source = cache / "hugging-face"
    if not (source / "config.json").exists():
        write_hugging_face(checkpoint, model, source)
    command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", str(source), "-o", str(target)]
    command += ["-p", precision, "-e", "cpu", "-c", str(cache / "downloads")]
    if precision == "int4":
        command += ["--extra_options", "int4_block_size=32", "int4_accuracy_level=4"]
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    print(f"onnxruntime-genai built {precision} in {time.perf_counter() - started:.1f} s", file=sys.stderr)
    return target


def write_hugging_face(checkpoint: Any, model: Any, folder: Path) -> None:
    """The checkpoint as transformers and the peer's builder read it."""
    model.save_pretrained(folder)
    for name, content in checkpoint.tokenizer_files.items():
        (folder / name).write_bytes(content)
    if not (folder / "tokenizer_config.json").exists():
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))


Case = tuple[str, str, int]  # engine, phase, batch


def measure(
    found: dict[str, Engine],
    rounds: int,
    vocab_size: int,
    lengths: Sequence[int] = PROMPTS,
    batches: Sequence[int] = BATCHES,
    pasts: Sequence[int] = (),
    on_round: Callable[[dict[Case, list[float]]], None] = lambda _: None,
) -> dict[Case, list[float]]:
    """Tokens per second of every case in every round; a first round warms up and is not counted.

    Each round has prompts of its own: an engine that keeps those it has seen would answer from memory.
    """
    shape = max(batches), max(PROMPT, *lengths, *pasts)
    cases: list[tuple[str, int, Callable[[Engine, np.ndarray], float], int]] = [
        *((f"prefill {n}", 1, lambda engine, rows, n=n: engine.prefill(rows[:, :n]), n) for n in lengths),
        *(("decode", b, lambda engine, rows: engine.decode(rows[:, :PROMPT]), b * TOKENS) for b in batches),
        *((f"decode at {n}", 1, lambda engine, rows, n=n: engine.decode(rows[:, :n]), TOKENS) for n in pasts),
    ]
    speeds: dict[Case, list[float]] = {}
    if all(hasattr(engine, "uneven") for engine in found.values()):
        cases.append(("uneven", ROWS, lambda engine, rows: engine.uneven(rows), int(WANTED.sum())))
    for number in range(rounds + 1):
        random = np.random.default_rng(number)
        prompts, ids = (random.integers(3, vocab_size, size) for size in ((len(WANTED), UNEVEN_PROMPT), shape))
        for phase, batch, run, tokens in cases:
            for name, engine in found.items():
                if batch not in getattr(engine, "batches", (batch,)):
                    continue
                time.sleep(SETTLE)
                if not isinstance(engine, LlamaCpp):  # a process of its own wakes up by itself
                    engine.prefill(ids[:1, :8])
                seconds = run(engine, prompts if phase == "uneven" else ids[:batch])
                if number:
                    speeds.setdefault((name, phase, batch), []).append(tokens / seconds)
        on_round(speeds)
        print(f"round {number} of {rounds}", file=sys.stderr)
    return speeds


def report(speeds: dict[Case, list[float]]) -> str:
    """A table of medians, then our ratios to each peer, each the median of the rounds' ratios."""
    lines = [f"{'':28} {'phase':12} {'batch':>5} {'tokens/s':>10}   from … to"]
    for (name, phase, batch), rates in speeds.items():
        lines.append(f"{name:28} {phase:12} {batch:5} {median(rates):10.1f}   {min(rates):.1f} … {max(rates):.1f}")
    lines += [f"{ours} : {peer}, {phase} of batch {batch}: {r:.2f}×" for ours, peer, phase, batch, r in ratios(speeds)]
    return "\n".join(lines)


def ratios(speeds: dict[Case, list[float]]) -> list[tuple[str, str, str, int, float]]:
    """Ours, peer, phase, batch and ratio; of genai's two precisions, the same as ours."""
    found = []
    for (ours, phase, batch), rates in speeds.items():
        for (peer, other_phase, other_batch), others in speeds.items():
            if (
                not ours.startswith("onnxlm")
                or peer.startswith("onnxlm")
                or (phase, batch) != (other_phase, other_batch)
            ):
                continue
            if peer.startswith("genai") and peer.split()[1] not in ours:
                continue
            found.append((ours, peer, phase, batch, median(a / b for a, b in zip(rates, others, strict=True))))
    return found


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, help="the checkpoint that all came from: adds genai and transformers")
    parser.add_argument("--fp32", type=Path, help="our bundle in float32")
    parser.add_argument("--int4", type=Path, nargs="+", required=True, help="our bundles in 4 bits")
    parser.add_argument("--gguf", type=Path, nargs="*", default=[], help="files for llama.cpp and OpenVINO GenAI")
    parser.add_argument("--llama-bin", type=Path, metavar="FOLDER", help="where llama-batched-bench is")
    parser.add_argument("--openvino", action="store_true", help="measure OpenVINO GenAI on the --gguf files, too")
    parser.add_argument("--prompts", type=int, nargs="+", default=PROMPTS, help="lengths of prompts for prefill")
    parser.add_argument("--pasts", type=int, nargs="*", default=(), help="tokens that decode of one goes on behind")
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES, help="sequences that decode together")
    parser.add_argument("--markdown", type=Path, help="a document to write the tables into")
    parser.add_argument("--cache", type=Path, default=Path("demo/peers"), help="where peers' models are kept")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--without", nargs="*", default=[], help="peers to leave out: onnxruntime_genai transformers")
    parser.add_argument("--json", type=Path, help="write every round's figures here")
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    found = engines(options)
    vocab_size = json.loads((options.int4[0] / "manifest.json").read_text())["architecture"]["vocab_size"]

    def keep(speeds: dict[Case, list[float]]) -> None:
        """After each round, so that a run that is cut off has told what it measured."""
        rows = [{"engine": n, "phase": p, "batch": b, "tokens_per_second": r} for (n, p, b), r in speeds.items()]
        if options.json:
            options.json.write_text(json.dumps(rows, indent=1))

    speeds = measure(found, options.rounds, vocab_size, options.prompts, options.batches, options.pasts, keep)
    read = {name: engine.bytes for name, engine in found.items() if hasattr(engine, "bytes")}
    print(report(speeds))
    for name, size in read.items():
        alone = speeds.get((name, "decode", 1))
        speed = f", {size * median(alone) / 1e9:.1f} GB/s" if alone else ""
        print(f"{name:28} {size / 1e6:8.0f} MB a token{speed}")
    if options.markdown:
        write_section(options.markdown, options.int4[0].name, speeds, ratios(speeds), options.rounds, read)


if __name__ == "__main__":
    main()
