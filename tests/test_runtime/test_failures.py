"""Whatever the executor raises, in a step or outside, ends one request at most; a dead engine says so at once."""

import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import runtime
from runtime import LLM, EngineOptions, SamplingParams
from runtime.bundle.bundle import open_bundle
from runtime.cache.blocks import BlockPool
from runtime.engine.core import EngineCore
from runtime.engine.handle import RequestHandle
from runtime.engine.scheduling.limits import Limits
from runtime.engine.scheduling.prefill_policy import ChunkedPrefillPolicy as Policy
from runtime.engine.scheduling.scheduler import Scheduler
from runtime.engine.scheduling.waiting import WaitingLimit
from runtime.ort.executor import OnnxExecutor

PARAMS = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True)


class Breaking(OnnxExecutor):
    """Raises something foreign from one method, once it is told to."""

    broken: str | None = None
    once = False

    def _perhaps(self, name: str) -> None:
        if self.broken == name:
            self.broken = None if self.once else name
            raise ZeroDivisionError(name)

    def copy_slot(self, *arguments: Any) -> None:
        self._perhaps("copy_slot")
        super().copy_slot(*arguments)

    def free_slot(self, *arguments: Any) -> None:
        self._perhaps("free_slot")
        super().free_slot(*arguments)

    def read(self, *arguments: Any) -> Any:
        self._perhaps("read")
        return super().read(*arguments)

    def write(self, *arguments: Any) -> None:
        self._perhaps("write")
        super().write(*arguments)

    def decode(self, *arguments: Any) -> Any:
        self._perhaps("decode")
        return super().decode(*arguments)

    def prefill(self, *arguments: Any) -> Any:
        self._perhaps("prefill")
        return super().prefill(*arguments)

    def prefill_without_logits(self, *arguments: Any) -> Any:
        self._perhaps("prefill_without_logits")
        return super().prefill_without_logits(*arguments)

    def prefill_batch(self, *arguments: Any) -> Any:
        self._perhaps("prefill_batch")
        return super().prefill_batch(*arguments)

    def all_logits(self, *arguments: Any) -> Any:
        self._perhaps("all_logits")
        return super().all_logits(*arguments)

    def interrupt(self) -> None:
        self._perhaps("interrupt")
        super().interrupt()


def load(bundle: Path, **options: Any) -> LLM:
    executor = Breaking(open_bundle(bundle), slots=3, threads=1)
    return LLM(bundle, executor=executor, options=EngineOptions(max_concurrency=3, **options))


@pytest.mark.parametrize("method", ["free_slot", "read", "write", "decode", "prefill_batch"])
def test_what_can_be_done_without_changes_no_answer(tiny_bundle, method):
    prompts = [[5] * 70 + [number] for number in range(6)]
    with load(tiny_bundle, prefix_cache=1 << 22) as llm:
        expected = [one.token_ids for one in llm.generate(prompts, PARAMS)]
    with load(tiny_bundle, prefix_cache=1 << 22) as llm:
        llm.generate(prompts[0], PARAMS)
        llm.model.engine.core.executor.broken = method
        assert [one.token_ids for one in llm.generate(prompts, PARAMS)] == expected
        assert llm.stats().alive


def test_a_slot_that_cannot_be_copied_ends_the_sequence_that_was_to_be_moved(tiny_bundle):
    with load(tiny_bundle) as llm:
        streams = [llm.stream([5, 6, number], PARAMS, max_tokens=count) for number, count in enumerate((8, 40, 40))]
        llm.model.engine.core.executor.once = True
        llm.model.engine.core.executor.broken = "copy_slot"
        done = [(stream.deltas(), stream.answers[0].error) for stream in streams]
        reasons = [deltas[-1].finish_reason for deltas, _ in done]
        assert reasons[0] == "length"
        assert sorted(reasons[1:]) == ["error", "length"]
        message = str(done[reasons.index("error")][1])  # slot 1, where the third came late
        assert re.match(r"Copying slot [12] to slot 0 failed: ZeroDivisionError", message)
        assert llm.generate([5, 6, 1], PARAMS).finish_reason == "length"


@pytest.mark.parametrize("method", ["prefill", "prefill_without_logits", "all_logits"])
def test_a_prompt_that_cannot_be_computed_fails_alone(tiny_bundle, method):
    params = SamplingParams(max_tokens=2, prompt_logprobs=0 if method == "all_logits" else None)
    with load(tiny_bundle, prefill_chunk=16) as llm:
        expected = llm.generate([7] * 50, params).token_ids
        llm.model.engine.core.executor.once = True
        llm.model.engine.core.executor.broken = method
        with pytest.raises(runtime.ExecutionError, match=f"A prefill failed: ZeroDivisionError.'{method}'"):
            llm.generate([8] * 50, params)
        assert llm.generate([7] * 50, params).token_ids == expected


def test_an_executor_that_cannot_be_interrupted_is_cancelled_and_closed(tiny_bundle):
    llm = load(tiny_bundle)
    stream = llm.stream([5, 6], PARAMS)
    llm.model.engine.core.executor.broken = "interrupt"
    llm.model.engine.core.prefill.computing = stream.answers[0].sequence
    stream.close()
    llm.close()
    assert stream.answers[0].sequence.finish_reason in ("cancelled", "length")


def test_draining_an_engine_that_has_stopped_says_so_at_once(tiny_bundle):
    with load(tiny_bundle) as llm:
        llm.model.engine.core.scheduler.admit = lambda _: 1 / 0
        with pytest.raises(runtime.EngineClosedError):
            llm.generate([5, 6])
        began = time.monotonic()
        with pytest.raises(runtime.EngineClosedError, match="The engine stopped: ZeroDivisionError"):
            llm.model.engine.drain()
        assert time.monotonic() - began < 1


def test_a_closed_engine_cannot_be_drained_or_asked(tiny_bundle):
    llm = load(tiny_bundle)
    llm.close()
    with pytest.raises(runtime.EngineClosedError, match="is closed"):
        llm.model.engine.drain()
    with pytest.raises(runtime.EngineClosedError, match="is closed"):
        llm.generate([5, 6])


def lines_of_a_step(bundle: Path, waiting: int) -> int:
    """How many lines of the engine run in one decode step beside so many waiting requests, each with a deadline."""
    model = load(bundle).model
    model.close()  # ends the engine's thread: here the test steps
    executor = Breaking(open_bundle(bundle), slots=3, threads=1)
    core = EngineCore(executor, Scheduler(Limits(3, 256), BlockPool(48, 16)), WaitingLimit(1000), Policy(512))
    request = model.request([5, 6, 7], PARAMS, timeout=3600)
    for _ in range(waiting):
        core.queue.enter(1, 3)
        core.accept(model.answers(request)[0])
    for _ in range(8):
        core.step()
    lines = 0

    def count(frame: Any, event: str, _: Any) -> Any:
        nonlocal lines
        lines += event == "line" and "/runtime/engine/" in frame.f_code.co_filename
        return count

    sys.settrace(count)
    core.step()
    sys.settrace(None)
    executor.close()
    return lines


def test_a_step_does_the_same_work_however_many_wait(tiny_bundle):
    few, many = (lines_of_a_step(tiny_bundle, waiting) for waiting in (10, 300))
    assert 20 < few == many


def test_answers_of_several_requests_can_be_one_handle(tiny_bundle):
    with load(tiny_bundle) as llm:
        requests = [llm.model.request([5, number], PARAMS, timeout=None) for number in range(3)]
        answers = [answer for request in requests for answer in llm.model.answers(request)]
        pieces = []
        handle = RequestHandle(llm.model.engine, answers)
        while (piece := handle.next_piece()) is not None:
            pieces.append(piece)
        assert handle.ended
        assert {piece.choice for piece in pieces} == {0, 1, 2}
