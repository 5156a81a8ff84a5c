"""Requests beside one that the GPU has no memory for, and requests that are cancelled."""

from typing import Any

import pytest

import runtime
from runtime.errors import DeviceMemoryError
from runtime.options import EngineOptions

GREEDY = runtime.SamplingParams(max_tokens=300, ignore_eos=True, temperature=0)


@pytest.fixture(scope="module")
def bundle(library: Any, make_checkpoint: Any, make_bundle: Any) -> Any:
    return make_bundle(make_checkpoint(max_position_embeddings=2048), target="cuda")


@pytest.mark.parametrize("allocation", [1, 2, 3, 4, 5, 6])
def test_a_growth_without_memory_ends_one_request(cuda: Any, bundle: Any, allocation: int) -> None:
    with runtime.LLM(bundle, options=EngineOptions(max_concurrency=2)) as llm:
        neighbour = iter(llm.stream([5, 6, 7], GREEDY))
        first = next(neighbour)
        cuda.fail("cudaMalloc", allocation)
        failed = False
        try:
            llm.generate([9] * 1500, GREEDY.with_changes({"max_tokens": 2}))
        except DeviceMemoryError:
            failed = True
        cuda.fail()
        tokens = len(first.token_ids) + sum(len(delta.token_ids) for delta in neighbour)
        assert tokens == 300
        assert failed or allocation > 1
        assert len(llm.generate([9] * 1500, GREEDY.with_changes({"max_tokens": 2})).token_ids) == 2


def test_cancelled_requests_leave_nothing(cuda: Any, bundle: Any) -> None:
    with runtime.LLM(bundle, options=EngineOptions(max_concurrency=4)) as llm:
        for number in range(1000):
            next(iter(llm.stream([5, 6, 7 + number % 50], GREEDY)))
        assert len(llm.generate([1, 2, 3], GREEDY).token_ids) == 300
