"""Greedy text of onnxruntime-genai over a folder of `onnxlm export --format genai`, against our own over the bundle.

pip install onnxruntime-genai
onnxlm export smol-int4 --format genai -o smol-genai
python tests/bench/genai.py smol-int4 smol-genai                 # prints one JSON object; exit 1 if any token differs
python tests/bench/genai.py smol-int4 smol-genai other-genai     # and how fast another folder's graph is beside it
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime_genai as genai

from runtime import LLM, SamplingParams

PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a small village by the sea, there lived",
    "<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n",
    "def fibonacci(n):\n",
    "Größe, naïve, Привет, 你好: these words",
    "1, 1, 2, 3, 5, 8,",
)


def generate(model: genai.Model, prompts: list[list[int]], tokens: int, pad: int) -> list[list[int]]:
    """New ids of each prompt, all in one batch; shorter ones are padded on the right."""
    width = max(map(len, prompts))
    params = genai.GeneratorParams(model)
    params.set_search_options(max_length=width + tokens, min_length=width + tokens, batch_size=len(prompts))
    generator = genai.Generator(model, params)
    generator.append_tokens(np.array([ids + [pad] * (width - len(ids)) for ids in prompts], np.int32))
    while not generator.is_done():
        generator.generate_next_token()
    return [[int(token) for token in generator.get_sequence(row)[width:]] for row in range(len(prompts))]


def speed(model: genai.Model) -> tuple[float, float]:
    """Tokens per second of a prefill of 128, and of 64 steps behind it."""
    params = genai.GeneratorParams(model)
    params.set_search_options(max_length=193, min_length=193)
    generator = genai.Generator(model, params)
    started = time.perf_counter()
    generator.append_tokens(np.arange(1000, 1128, dtype=np.int32))
    generator.generate_next_token()
    first = time.perf_counter()
    for _ in range(64):
        generator.generate_next_token()
    return 128 / (first - started), 64 / (time.perf_counter() - first)


def main() -> None:
    """Compare, then measure in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    models = {folder.name: genai.Model(str(folder)) for folder in chosen.folders}
    with LLM(chosen.bundle) as llm:
        prompts = [llm.model.tokenizer.encode(text) for text in PROMPTS]
        greedy = SamplingParams(temperature=0, max_tokens=chosen.tokens, min_tokens=chosen.tokens)
        ours = [list(llm.generate(ids, greedy).token_ids) for ids in prompts]
        pad = llm.model.bundle.manifest.tokens.pad or 0
    first = models[chosen.folders[0].name]
    alone = [generate(first, [ids], chosen.tokens, pad)[0] for ids in prompts]
    batch = generate(first, prompts, chosen.tokens, pad)
    same = {"alone": sum(map(list.__eq__, alone, ours)), "batch": sum(map(list.__eq__, batch, ours))}
    runs = [{name: speed(model) for name, model in models.items()} for _ in range(chosen.rounds)]
    medians = {name: [round(statistics.median(run[name][i] for run in runs), 1) for i in range(2)] for name in models}
    report = {"prompts": len(PROMPTS), "tokens": chosen.tokens, "same": same, "prefill_decode_tokens_per_s": medians}
    print(json.dumps(report))
    sys.exit(set(same.values()) != {len(PROMPTS)})


if __name__ == "__main__":
    main()
