"""The engine over models whose layers keep states: whatever happens around a request, its tokens are transformers'."""

import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from runtime import LLM, Completion, EngineOptions, SamplingParams
from runtime.batch import Batch


def params(seed: int = 0, **changes: Any) -> SamplingParams:
    """Tokens of all kinds, and their log-probabilities to compare."""
    return SamplingParams(**({"temperature": 1.0, "seed": seed, "logprobs": 0, "ignore_eos": True} | changes))


def prompts(seed: int, number: int, longest: int = 150) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(4, 320) for _ in range(draw.randint(1, longest))] for _ in range(number)]


def load(hybrid: Any, **options: Any) -> LLM:
    return LLM(hybrid.bundle, options=EngineOptions(**({"threads": 1, "max_concurrency": 4} | options)))


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.001)


def run(llm: LLM, wanted: list[list[int]], lengths: list[int]) -> list[Completion]:
    requests = [
        llm.model.request(prompt, params(place, max_tokens=length))
        for place, (prompt, length) in enumerate(zip(wanted, lengths, strict=True))
    ]
    return Batch(llm.model).run(requests)


@pytest.mark.parametrize(
    "options",
    [
        {"prefill_chunk": 7},
        {"prefill_chunk": 1, "reuse_generated": True},
        {"prefix_cache": 8 << 20},
        {"admission": "optimistic", "max_concurrency": 3, "kv_memory": 700 << 10},
        {"speculation": 8, "max_concurrency": 1},
    ],
    ids=str,
)
def test_uneven_requests_through_few_rows(hybrid: Any, options: dict[str, Any]) -> None:
    draw = random.Random(1)
    begin = prompts(9, 1)[0] * 3
    wanted = [begin[: draw.randrange(0, 150)] + prompt for prompt in prompts(2, 14, 90)]
    lengths = [draw.randint(1, 14) for _ in wanted]
    with load(hybrid, **options) as llm:
        completions = run(llm, wanted, lengths)
    for prompt, length, completion in zip(wanted, lengths, completions, strict=True):
        assert (completion.finish_reason, len(completion.token_ids)) == ("length", length)
        hybrid.check(prompt, completion)
