"""What reading a chat's answer costs beside a decode step: `python tests/bench/chat_reader.py BUNDLE`.

For each format, a long answer of text and calls is read in pieces of a token's size; printed are microseconds per
token, and the share of one decode step of 8 sequences that 8 tokens take.

"""

import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from chat_cases import NAMES, message_of, rendered_answer, schemas, template_of, tool

from runtime.bundle.bundle import open_bundle
from runtime.chat.formats.reader import AnswerReader
from runtime.ort.executor import OnnxExecutor

PIECE, BATCH, STEPS = 4, 8, 200
TOOLS = [tool("find", {"words": {"type": "string"}, "n": {"type": "integer"}})]


def step_seconds(bundle):
    """The median time of a decode step of 8 sequences."""
    executor = OnnxExecutor(open_bundle(bundle), "cpu", slots=BATCH)
    for slot in range(BATCH):
        executor.prefill(slot, 0, np.arange(1, 65))
    times = []
    for step in range(STEPS // 4):
        begun = time.perf_counter()
        executor.decode(np.full(BATCH, 5), np.full(BATCH, 64 + step))
        times.append(time.perf_counter() - begun)
    executor.close()
    return float(np.median(times))


def token_seconds(name):
    """The mean time that a piece takes."""
    call = rendered_answer(name, TOOLS, message_of([("call00000", "find", {"words": "some words " * 200, "n": 3})]))
    answer = "Here is <b>what</b> I [found] {so far}: " * 100 + call
    reader = AnswerReader(template_of(name).format, schemas(TOOLS))
    pieces = [answer[i : i + PIECE] for i in range(0, len(answer), PIECE)]
    begun = time.process_time()
    for piece in pieces:
        reader.push(piece)
    reader.finish()
    return (time.process_time() - begun) / len(pieces)


def main():
    step = step_seconds(sys.argv[1])
    print(f"one decode step of {BATCH}: {1e3 * step:.2f} ms")
    for name in NAMES:
        cost = min(token_seconds(name) for _ in range(3))
        print(f"{name:22} {1e6 * cost:6.1f} µs a token, {100 * BATCH * cost / step:5.2f} % of the step")


if __name__ == "__main__":
    main()
