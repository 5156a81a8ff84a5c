"""llama.cpp as a peer: its own benchmark program, one process a measurement, on a GGUF file.

pip download --no-deps --no-binary :all: llama-cpp-python==0.3.36 && tar xf llama_cpp_python-0.3.36.tar.gz
cd llama_cpp_python-0.3.36/vendor/llama.cpp
cmake -B build -DCMAKE_BUILD_TYPE=Release -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_SERVER=OFF
cmake --build build --target llama-bench llama-batched-bench llama-quantize
build/bin/llama-quantize MODEL.gguf MODEL-q4_0.gguf Q4_0
"""

import json
import os
import subprocess
from pathlib import Path

import numpy as np

PROGRAM = "llama-batched-bench"


class LlamaCpp:
    """One file in one program; a measurement loads the model, warms up, and times itself without that.

    Args:
        folder: where the programs are.
        model: the GGUF file.
        tokens: decode steps a measurement.
        threads: None is the number of cores that this process may use.
    """

    phases = ("prefill", "decode")

    def __init__(self, folder: Path, model: Path, tokens: int, threads: int | None = None) -> None:
        self._program, self._model, self._tokens = folder / PROGRAM, model, tokens
        self.bytes = model.stat().st_size if model.is_file() else 0
        self._threads = threads or len(os.sched_getaffinity(0))
        if not self._program.is_file():
            raise SystemExit(f"{self._program} is not there: tests/bench/llama_cpp.py says how to build it.")
        if not model.is_file():
            raise SystemExit(f"{model} is not there: give --gguf files that llama.cpp reads.")

    def prefill(self, ids: np.ndarray) -> float:
        """Seconds for the prompts of `ids` [batch, prompt]."""
        return self._run(*ids.shape, 1)["t_pp"]

    def decode(self, ids: np.ndarray) -> float:
        """Seconds for the further tokens of every row."""
        return self._run(*ids.shape, self._tokens)["t_tg"]

    def _run(self, batch: int, prompt: int, tokens: int) -> dict[str, float]:
        numbers = {"-npp": prompt, "-ntg": tokens, "-npl": batch, "-t": self._threads}
        numbers["-c"] = batch * (prompt + tokens + 8)
        words = [str(word) for pair in numbers.items() for word in pair]
        done = subprocess.run(
            [self._program, "-m", self._model, *words, "--output-format", "jsonl"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode or not rows:
            raise SystemExit(f"{PROGRAM} failed on {self._model}: {done.stderr.strip().splitlines()[-1:]}")
        found: dict[str, float] = rows[-1]
        return found
