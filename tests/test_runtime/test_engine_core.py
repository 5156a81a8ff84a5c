"""Whose turn it is: prompts or rows that decode, where somebody reads along and where nobody does."""

import sys
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime import LLM, EngineOptions, SamplingParams
from runtime.bundle.bundle import open_bundle
from runtime.cache.blocks import BlockPool
from runtime.engine.core import EngineCore
from runtime.engine.handle import RequestHandle
from runtime.engine.scheduling.limits import Limits
from runtime.engine.scheduling.prefill_policy import ChunkedPrefillPolicy as Policy
from runtime.engine.scheduling.prefill_policy import Pauses
from runtime.engine.scheduling.scheduler import Scheduler
from runtime.engine.scheduling.waiting import WaitingLimit
from runtime.ort.binding import FloatArray, IntArray
from runtime.ort.executor import OnnxExecutor


def prompts(seed: int, number: int, longest: int) -> list[list[int]]:
    draw = np.random.default_rng(seed)
    return [draw.integers(0, 256, draw.integers(1, longest)).tolist() for _ in range(number)]


class Diary(OnnxExecutor):
    """Writes down what it ran: "p" for a piece of a prompt, and how many rows decoded."""

    def prefill(self, slot: int, past: int, ids: IntArray) -> FloatArray:
        self.entries = [*getattr(self, "entries", []), "p"]
        return super().prefill(slot, past, ids)

    def prefill_without_logits(self, slot: int, past: int, ids: IntArray) -> None:
        self.entries = [*getattr(self, "entries", []), "p"]
        super().prefill_without_logits(slot, past, ids)

    def decode(self, ids: IntArray, lengths: IntArray) -> FloatArray:
        self.entries = [*self.entries, len(ids)]
        return super().decode(ids, lengths)


def test_where_nobody_reads_along_rows_fill_before_they_decode(synthetic_bundle: Path) -> None:
    executor = Diary(open_bundle(synthetic_bundle), slots=4, threads=1)
    executor.can_batch_prefill = False
    with LLM(synthetic_bundle, executor=executor, options=EngineOptions(max_concurrency=4)) as llm:
        llm.model.engine.core.policy.largest = 50
        requests = [llm.model.request(p, SamplingParams(max_tokens=20)) for p in prompts(1, 12, longest=200)]
        answers = [llm.model.answers(one)[0] for one in requests]
        for delta in RequestHandle(llm.model.engine, answers):
            assert delta.finish_reason != "error"
    decoded = [entry for entry in executor.entries if entry != "p"]
    assert decoded == sorted(decoded, reverse=True)
    assert decoded.count(4) >= 3 * 18


def test_while_somebody_reads_along_a_prompt_takes_turns_with_the_answer(synthetic_bundle: Path) -> None:
    executor = Diary(open_bundle(synthetic_bundle), slots=2, threads=1)
    with LLM(synthetic_bundle, executor=executor, options=EngineOptions(max_concurrency=2)) as llm:
        llm.model.engine.core.policy.size = lambda _, *, streaming_active: 4 if streaming_active else 512  # type: ignore[method-assign]
        stream = llm.stream([1, 2, 3], SamplingParams(max_tokens=120))
        next(stream)
        llm.generate(list(range(200)), SamplingParams(max_tokens=2))
        stream.close()
    beside = executor.entries[executor.entries.index("p", 1) :][:60]
    assert beside == ["p", 1] * 30


def note_chunks(core: EngineCore, generated: list[int]) -> None:
    """Note, before each chunk of a prompt, how many tokens there are."""
    for name in ("prefill", "prefill_without_logits"):
        run = getattr(core.executor, name)

        def noting(*arguments: Any, run: Callable[..., Any] = run) -> Any:
            generated.append(core.requests.counts["generated"])
            return run(*arguments)

        setattr(core.executor, name, noting)


def slow_down(core: EngineCore) -> None:
    """A millisecond more for each step, so that an answer does not end before the next prompt comes."""
    for name in ("decode", "all_logits"):
        run = getattr(core.executor, name)

        def slowly(*arguments: Any, run: Callable[..., Any] = run) -> Any:
            time.sleep(0.001)
            return run(*arguments)

        setattr(core.executor, name, slowly)


@pytest.mark.parametrize("speculation", [0, 8])
def test_beside_a_reader_a_long_prompt_waits_for_many_tokens_between_two_chunks(
    synthetic_bundle: Path, speculation: int
) -> None:
    options = EngineOptions(max_concurrency=2, speculation=speculation)
    generated: list[int] = []
    with LLM(synthetic_bundle, options=options) as llm:
        llm.model.engine.core.policy.pauses = Pauses(0, 0, 0, 0, 0)
        note_chunks(llm.model.engine.core, generated)
        slow_down(llm.model.engine.core)
        stream = llm.stream([1, 2, 3, 1, 2, 3], SamplingParams(max_tokens=200))
        next(stream)
        assert llm.generate(list(range(20)), SamplingParams(max_tokens=1)).finish_reason == "length"
        stream.close()
    between = [after - before for before, after in pairwise(generated[1:])]
    assert len(between) >= 3
    assert min(between) >= 28


def test_a_decode_step_of_four_enters_few_functions(synthetic_bundle: Path) -> None:
    with LLM(synthetic_bundle, options=EngineOptions(max_concurrency=4, threads=1)) as llm:
        model = llm.model
    executor = OnnxExecutor(open_bundle(synthetic_bundle), slots=4, threads=1)  # stepped here, without a thread
    core = EngineCore(executor, Scheduler(Limits(4, 128), BlockPool(64, 16)), WaitingLimit(4), Policy(512))
    for number in range(4):
        core.queue.enter(1, 3)
        core.accept(model.answers(model.request([5, 6, number], SamplingParams(max_tokens=60)))[0])
    for _ in range(10):
        core.step()
    entered: Counter[Any] = Counter()

    def count(frame: Any, event: str, _: Any) -> None:
        entered[frame.f_code] += event == "call" and "/runtime/" in frame.f_code.co_filename

    sys.setprofile(count)
    core.step()
    sys.setprofile(None)
    executor.close()
    ours = {code: calls for code, calls in entered.items() if calls}
    assert 30 < len(ours) <= 45
    assert sum(ours.values()) <= 95
