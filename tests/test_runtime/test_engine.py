"""The engine over the synthetic model: whatever happens around a request, its tokens are those of the formula."""

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from engine_waits import idle, wait_until

from runtime import LLM, EngineOptions, ExecutionError, OutputDelta, QueueFullError, SamplingParams
from runtime.bundle.bundle import open_bundle
from runtime.ort.binding import FloatArray, IntArray
from runtime.ort.executor import OnnxExecutor

Continuation = Callable[[list[int], int], list[int]]
CONTEXT = 256


@pytest.fixture(params=["one prompt a run", "several"])
def synthetic_bundle(request: pytest.FixtureRequest, synthetic_bundle: Path) -> Path:
    """Both ways to prefill: everything below must hold for either."""
    several: Path = request.getfixturevalue("batching_bundle") if request.param == "several" else synthetic_bundle
    return several


def load(folder: Path, **options: object) -> LLM:
    return LLM(folder, options=EngineOptions(**({"threads": 1, "max_concurrency": 4} | options)))


@pytest.fixture
def llm(synthetic_bundle: Path) -> Iterator[LLM]:
    with load(synthetic_bundle) as llm:
        yield llm


def prompts(seed: int, number: int, longest: int = 100) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(320) for _ in range(draw.randint(1, longest))] for _ in range(number)]


@pytest.mark.parametrize("chunk", [1, 7, 128])
@pytest.mark.parametrize("extra", [{}, {"admission": "optimistic", "kv_memory": 64 * 300}, {"reuse_generated": True}])
def test_uneven_requests_through_few_rows(
    synthetic_bundle: Path, continuation: Continuation, chunk: int, extra: dict[str, object]
) -> None:
    wanted = prompts(chunk, 24)
    lengths = [random.Random(index).randint(1, 60) for index in range(24)]
    with load(synthetic_bundle, prefill_chunk=chunk, **extra) as llm:
        requests = [
            llm.model.request(prompt, SamplingParams(max_tokens=length))
            for prompt, length in zip(wanted, lengths, strict=True)
        ]
        from runtime.batch import Batch

        completions = Batch(llm.model).run(requests)
    for prompt, length, completion in zip(wanted, lengths, completions, strict=True):
        assert list(completion.token_ids) == continuation(prompt, length)
        assert completion.finish_reason == "length"


def test_short_prompts_are_prefilled_together(batching_bundle: Path, continuation: Continuation) -> None:
    wanted = [[number, *prompt] for number, prompt in enumerate(prompts(4, 32, longest=20))]
    executor = Watched(open_bundle(batching_bundle), slots=8, threads=1)
    with LLM(batching_bundle, executor=executor) as llm:
        streams = burst(llm, wanted, max_tokens=12)
        got = [[token for delta in stream for token in delta.token_ids] for stream in streams]
    assert got == [continuation(ids, 12) for ids in wanted]
    assert executor.together[0] >= 7  # the slot of the one that held them up may not be free yet
    assert sum(executor.together) >= 24


def burst(llm: LLM, wanted: list[list[int]], **params: int) -> list[Iterator[OutputDelta]]:
    """Streams that the engine admits when all of them wait (or all but the last); nothing slows their prefill down."""
    core, begun, gate = llm.model.engine.core, threading.Event(), threading.Event()
    prefill = core.executor.prefill
    core.executor.prefill = lambda *chunk: (begun.set(), gate.wait(), prefill(*chunk))[-1]  # type: ignore[method-assign]
    core.policy.size = lambda *_, **__: 512  # type: ignore[method-assign]
    holding = llm.stream([0, 0], SamplingParams(max_tokens=0))  # nothing is admitted while this one is computed
    assert begun.wait(30)
    streams = [llm.stream(ids, SamplingParams(**params)) for ids in wanted]
    gate.set()
    list(holding)
    return streams


class Watched(OnnxExecutor):
    """Counts how many prompts each run had."""

    def prefill_batch(self, first: int, pasts: Sequence[int], chunks: Sequence[IntArray]) -> FloatArray:
        self.together = [*getattr(self, "together", []), len(chunks)]
        return super().prefill_batch(first, pasts, chunks)


def test_streams_from_many_threads(llm: LLM, continuation: Continuation) -> None:
    wanted = prompts(3, 12)
    got: dict[int, list[int]] = {}

    def ask(number: int) -> None:
        time.sleep(0.002 * number)
        deltas = llm.stream(wanted[number], SamplingParams(max_tokens=30))
        got[number] = [token for delta in deltas for token in delta.token_ids]

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == {number: continuation(prompt, 30) for number, prompt in enumerate(wanted)}


def test_hundreds_of_cancels_at_any_stage_leave_nothing_behind(llm: LLM, continuation: Continuation) -> None:
    draw = random.Random(0)
    threads = threading.active_count()
    witness = llm.stream([1, 2, 3], SamplingParams(max_tokens=200))
    seen: list[int] = []
    for number in range(500):
        stream = llm.stream(prompts(number, 1, 200)[0], SamplingParams(max_tokens=200))
        for _ in range(draw.choice([0, 0, 1, 2, 5])):
            next(stream, None)
        stream.close()
        if number % 3 == 0 and (delta := next(witness, None)):
            seen += delta.token_ids
    seen += [token for delta in witness for token in delta.token_ids]
    wait_until(lambda: idle(llm))
    scheduler = llm.model.engine.core.scheduler
    assert seen == continuation([1, 2, 3], 200)
    assert scheduler.pool.free + scheduler.cached.blocks == scheduler.pool.total
    assert llm.model.engine.core.requests.answers == {}
    assert threading.active_count() <= threads  # one of an earlier test may have ended meanwhile


def test_closing_a_stream_cancels_its_request(llm: LLM) -> None:
    stream = llm.stream([5], SamplingParams(max_tokens=250))
    next(stream)
    stream.close()
    wait_until(lambda: idle(llm))
    assert llm.model.engine.stats().generated_tokens < 250


@pytest.mark.parametrize(("prompt", "most", "got"), [(255, 10, 1), (254, 10, 2), (250, 6, 6), (256, 0, 0), (9, 1, 1)])
def test_the_context_ends_an_answer(llm: LLM, continuation: Continuation, prompt: int, most: int, got: int) -> None:
    ids = prompts(prompt, 1)[0][:1] * prompt
    completion = llm.generate(ids, SamplingParams(max_tokens=most))
    assert list(completion.token_ids) == continuation(ids, got)
    assert completion.finish_reason == "length"


def test_a_timeout_ends_an_answer_with_what_there_is(llm: LLM, continuation: Continuation) -> None:
    completion = llm.generate([1, 2], SamplingParams(max_tokens=250), timeout=0.01)
    assert completion.finish_reason == "timeout"
    assert list(completion.token_ids) == continuation([1, 2], len(completion.token_ids))


def test_a_waiting_request_times_out_too(synthetic_bundle: Path) -> None:
    with load(synthetic_bundle, max_concurrency=1) as llm:
        long = llm.stream([1], SamplingParams(max_tokens=250))
        next(long)
        waiting = llm.generate([2], SamplingParams(max_tokens=5), timeout=0.0)
        long.close()
    assert (waiting.finish_reason, waiting.token_ids) == ("timeout", ())


def test_the_queue_refuses_what_is_too_much(synthetic_bundle: Path) -> None:
    with load(synthetic_bundle, max_concurrency=1, max_queue=2, max_queue_tokens=100) as llm:
        streams = [llm.stream([1], SamplingParams(max_tokens=250))]
        next(streams[0])
        streams.append(llm.stream([2] * 60))
        with pytest.raises(QueueFullError, match="60 prompt tokens are waiting; 50 more"):
            llm.stream([3] * 50)
        streams.append(llm.stream([4]))
        with pytest.raises(QueueFullError, match="2 requests are waiting, of 2"):
            llm.stream([5])
        for stream in streams:
            stream.close()


def test_several_answers_share_the_prompt(llm: LLM, continuation: Continuation) -> None:
    prompt = prompts(8, 1)[0] * 2
    completion = llm.generate(prompt, SamplingParams(max_tokens=20, n=3))
    answers = [completion, *completion.alternatives]
    assert [list(answer.token_ids) for answer in answers] == [continuation(prompt, 20)] * 3
    assert [answer.cached_tokens for answer in answers] == [0, len(prompt) - 2, len(prompt) - 2]


@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize("ending", ["length", "stop", "cancel", "timeout"])
def test_a_conversation_equals_one_without_a_cache(
    synthetic_bundle: Path, continuation: Continuation, ending: str, reuse: bool
) -> None:
    with load(synthetic_bundle, reuse_generated=reuse) as llm:
        tokens = [9, 8, 7]
        for step in range(6):
            expected = continuation(tokens, 25)
            answer = ended(llm, tokens, expected, ending)
            assert answer == expected[: len(answer)]
            tokens += [*answer, step, 300]
        completion = llm.generate(tokens, SamplingParams(max_tokens=5))
    assert list(completion.token_ids) == continuation(tokens, 5)
    assert completion.cached_tokens > 0


def ended(llm: LLM, tokens: list[int], expected: list[int], ending: str) -> list[int]:
    if ending == "stop":
        return list(llm.generate(tokens, SamplingParams(stop_token_ids=[expected[6]])).token_ids)
    if ending == "timeout":
        return list(llm.generate(tokens, SamplingParams(max_tokens=25), timeout=0.003).token_ids)
    stream = llm.stream(tokens, SamplingParams(max_tokens=12))
    answer = [
        token
        for _, delta in zip(range(5 if ending == "cancel" else 12), stream, strict=False)
        for token in delta.token_ids
    ]
    stream.close()
    wait_until(lambda: idle(llm))
    return answer


class Faulty(OnnxExecutor):
    """Fails, or computes NaN, whenever a step touches the poisonous token."""

    POISON = 77
    mode = "raise"

    def prefill(self, slot: int, past: int, ids: IntArray) -> FloatArray:
        return self._poisoned(super().prefill(slot, past, ids)[None], ids[-1:])[0]

    def decode(self, ids: IntArray, lengths: IntArray) -> FloatArray:
        return self._poisoned(super().decode(ids, lengths), ids)

    def prefill_batch(self, first: int, pasts: Sequence[int], chunks: Sequence[IntArray]) -> FloatArray:
        logits = super().prefill_batch(first, pasts, chunks)
        return self._poisoned(logits, np.array([chunk[-1] for chunk in chunks]))

    def _poisoned(self, logits: FloatArray, ids: IntArray) -> FloatArray:
        if self.mode == "raise" and (ids == self.POISON).any():
            raise ExecutionError("a planted fault")
        logits[ids == self.POISON] = np.nan
        return logits


@pytest.mark.parametrize("mode", ["raise", "nan"])
def test_a_poisoned_row_fails_alone(synthetic_bundle: Path, continuation: Continuation, mode: str) -> None:
    executor = Faulty(open_bundle(synthetic_bundle), slots=4, threads=1)
    executor.mode = mode
    wanted = [*prompts(5, 12), [3, Faulty.POISON], [3, 4]]
    with LLM(synthetic_bundle, executor=executor) as llm:
        completions = llm.generate(wanted, SamplingParams(max_tokens=60))
    failed = [completion for completion in completions if completion.finish_reason == "error"]
    for prompt, completion in zip(wanted, completions, strict=True):
        expected = continuation(prompt, 60)
        assert list(completion.token_ids) == expected[: len(completion.token_ids)]
        assert (Faulty.POISON in [prompt[-1], *expected[:59]]) == (completion.error is not None)
    assert 2 <= len(failed) < len(wanted)


def test_of_prompts_in_one_run_only_the_poisoned_fails(batching_bundle: Path, continuation: Continuation) -> None:
    executor = Faulty(open_bundle(batching_bundle), slots=8, threads=1)
    wanted = [[8, 9], [3, 4], [5, Faulty.POISON], [6, 7, 8]]
    with LLM(batching_bundle, executor=executor) as llm:
        reasons = []
        for stream, prompt in zip(burst(llm, wanted, max_tokens=1), wanted, strict=True):
            try:
                reasons.append([token for delta in stream for token in delta.token_ids] == continuation(prompt, 1))
            except ExecutionError as error:
                reasons.append(str(error))
    assert reasons == [True, True, "a planted fault", True]


def test_a_prompt_can_be_cancelled_among_others(batching_bundle: Path, continuation: Continuation) -> None:
    wanted = [[number, number + 1] for number in range(8)]
    with load(batching_bundle, max_concurrency=8) as llm:
        streams = burst(llm, wanted, max_tokens=100)
        streams[3].close()
        streams[6].close()
        left = [(streams[place], wanted[place]) for place in range(8) if place not in (3, 6)]
        got = [[token for delta in stream for token in delta.token_ids] for stream, _ in left]
    assert got == [continuation(ids, 100) for _, ids in left]


def test_a_single_failed_prompt_raises(synthetic_bundle: Path) -> None:
    executor = Faulty(open_bundle(synthetic_bundle), slots=2, threads=1)
    with LLM(synthetic_bundle, executor=executor) as llm:
        with pytest.raises(ExecutionError, match="planted"):
            llm.generate([1, Faulty.POISON])
        with pytest.raises(ExecutionError, match="planted"):
            list(llm.stream([1, Faulty.POISON]))
        assert llm.generate([1, 2], SamplingParams(max_tokens=3)).finish_reason == "length"


def test_a_broken_engine_ends_everything_and_says_so(synthetic_bundle: Path) -> None:
    with load(synthetic_bundle) as llm:
        llm.model.engine.core.scheduler.admit = lambda _: 1 / 0  # type: ignore[method-assign]
        with pytest.raises(ExecutionError, match="division by zero"):
            llm.generate([1, 2])
        with pytest.raises(ExecutionError, match="The engine stopped"):
            llm.generate([1, 2])
        assert not llm.model.engine.stats().alive


def test_drain_finishes_what_was_accepted(llm: LLM, continuation: Continuation) -> None:
    stream = llm.stream([4, 5], SamplingParams(max_tokens=50))
    assert llm.model.engine.drain(timeout=30)
    with pytest.raises(ExecutionError, match="takes no more requests"):
        llm.generate([1])
    assert [token for delta in stream for token in delta.token_ids] == continuation([4, 5], 50)


def test_closing_ends_open_answers(synthetic_bundle: Path) -> None:
    llm = load(synthetic_bundle)
    stream = llm.stream([4, 5], SamplingParams(max_tokens=250))
    next(stream)
    llm.close()
    last: OutputDelta = list(stream)[-1]
    assert last.finish_reason == "cancelled"
    with pytest.raises(ExecutionError, match="closed"):
        llm.generate([1])


def test_every_row_works_while_there_is_work(synthetic_bundle: Path) -> None:
    with load(synthetic_bundle, max_concurrency=8) as llm:
        batches: list[int] = []
        executor = llm.model.engine.core.executor
        decode = executor.decode
        executor.decode = lambda ids, lengths: batches.append(len(ids)) or decode(ids, lengths)  # type: ignore[method-assign]
        draw = random.Random(1)
        requests = [
            llm.model.request([draw.randrange(320)] * 9, SamplingParams(max_tokens=draw.randint(8, 200)))
            for _ in range(64)
        ]
        from runtime.batch import Batch

        # All of them wait from the start: how soon this thread hands over more is not the engine's doing.
        Batch(llm.model, ahead=len(requests)).run(requests)
    tokens = sum(request.params.max_tokens - 1 for request in requests)
    assert sum(batches) == tokens
    assert len(batches) <= 1.15 * max(tokens / 8, 199) + 8
