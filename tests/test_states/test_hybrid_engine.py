"""The engine over models whose layers keep states: whatever happens around a request, its tokens are transformers'."""

import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_waits import idle, wait_until

from runtime import LLM, Completion, EngineOptions, ExecutionError, SamplingParams
from runtime.batch import Batch
from runtime.bundle.bundle import open_bundle
from runtime.ort.binding import FloatArray, IntArray
from runtime.ort.executor import OnnxExecutor


def params(seed: int = 0, **changes: Any) -> SamplingParams:
    """Tokens of all kinds, and their log-probabilities to compare."""
    return SamplingParams(**({"temperature": 1.0, "seed": seed, "logprobs": 0, "ignore_eos": True} | changes))


def prompts(seed: int, number: int, longest: int = 150) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(4, 320) for _ in range(draw.randint(1, longest))] for _ in range(number)]


def text(seed: int, length: int) -> list[int]:
    return (prompts(seed, 1, 1)[0] + prompts(seed, 1, 300)[0] * 300)[:length]


def load(bundle: Path, **options: Any) -> LLM:
    return LLM(bundle, options=EngineOptions(**({"threads": 1, "max_concurrency": 4} | options)))


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
        {"prefix_cache": 8 << 20, "max_concurrency": 2},
    ],
    ids=["small chunks", "generated reused", "prefixes"],
)
def test_uneven_requests_through_few_rows(hybrid: Any, options: dict[str, Any]) -> None:
    draw = random.Random(1)
    begin = text(9, 150)
    wanted = [begin[: draw.randrange(0, 150)] + prompt for prompt in prompts(2, 10, 90)]
    lengths = [draw.randint(1, 14) for _ in wanted]
    with load(hybrid.bundle, **options) as llm:
        completions = run(llm, wanted, lengths)
    for prompt, length, completion in zip(wanted, lengths, completions, strict=True):
        assert (completion.finish_reason, len(completion.token_ids)) == ("length", length)
        hybrid.check(prompt, completion)


def test_what_is_preempted_is_computed_again(hybrid: Any) -> None:
    manifest = open_bundle(hybrid.bundle).manifest
    block = 16 * manifest.kv_cache.bytes_per_token
    states = -(-3 * manifest.state_bytes // block)
    wanted = [text(seed, 15) for seed in range(3)]
    memory = (3 * states + 8) * block  # each starts with one block and grows to five
    with load(hybrid.bundle, admission="optimistic", kv_memory=memory) as llm:
        completions = run(llm, wanted, [60] * 3)
        assert llm.model.engine.stats().preemptions
    for prompt, completion in zip(wanted, completions, strict=True):
        hybrid.check(prompt, completion)


def test_alone_and_in_company_every_bit_is_the_same(exact_hybrid: Any) -> None:
    wanted, lengths = prompts(5, 8, 140), [9, 3, 14, 1, 8, 12, 2, 10]
    with load(exact_hybrid.bundle, prefill_chunk=33, self_test=True) as llm:
        assert llm.deterministic
        together = run(llm, wanted, lengths)
    with load(exact_hybrid.bundle, max_concurrency=1) as llm:
        alone = run(llm, wanted, lengths)
    assert [(c.token_ids, c.logprobs) for c in together] == [(c.token_ids, c.logprobs) for c in alone]


def test_cancels_at_any_stage_leave_nothing_behind(hybrid: Any) -> None:
    draw = random.Random(0)
    with load(hybrid.bundle) as llm:
        threads = threading.active_count()
        witness = llm.stream([7, 8, 9], params(max_tokens=90))
        deltas = []
        for number in range(40):
            stream = llm.stream(text(number, draw.randint(1, 200)), params(max_tokens=50))
            for _ in range(draw.choice([0, 0, 1, 2, 5])):
                next(stream, None)
            stream.close()
            deltas += [delta] if (delta := next(witness, None)) else []
        deltas += list(witness)
        wait_until(lambda: idle(llm), 60)
        scheduler = llm.model.engine.core.scheduler
        assert scheduler.pool.free + scheduler.cached.blocks == scheduler.pool.total
        assert (threading.active_count(), llm.model.engine.core.requests.answers) == (threads, {})
    answer = [token for delta in deltas for token in delta.token_ids]
    ours = [entry.logprob for delta in deltas for entry in delta.logprobs]
    np.testing.assert_allclose(ours, hybrid.logprobs([7, 8, 9], answer), atol=2e-3)


@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize("ending", ["length", "cancel", "timeout"])
def test_a_conversation_continues_behind_what_was_kept(hybrid: Any, ending: str, reuse: bool) -> None:
    tokens = text(3, 70)
    with load(hybrid.bundle, reuse_generated=reuse) as llm:
        for step in range(4):
            tokens += [*ended(llm, tokens, ending), step + 5, 300]
        completion = llm.generate(tokens, params(max_tokens=9))
    hybrid.check(tokens, completion)
    assert completion.cached_tokens > (len(tokens) - 70 if reuse and ending == "length" else 60)


def ended(llm: LLM, tokens: list[int], ending: str) -> list[int]:
    if ending == "timeout":
        return list(llm.generate(tokens, params(max_tokens=15), timeout=0.02).token_ids)
    # One that is cancelled must still run then, however late its reader is: an answer that has ended keeps its end.
    count, most = (5, 120) if ending == "cancel" else (15, 15)
    stream = llm.stream(tokens, params(max_tokens=most))
    answer = [token for _, delta in zip(range(count), stream, strict=False) for token in delta.token_ids]
    stream.close()
    wait_until(lambda: idle(llm), 60)
    return answer


def test_several_answers_share_the_prompt(hybrid: Any) -> None:
    prompt = text(8, 150)
    with load(hybrid.bundle) as llm:
        first = llm.generate(prompt, params(max_tokens=9, n=3))
    answers = [first, *first.alternatives]
    assert [answer.cached_tokens for answer in answers] == [0, 128, 128]
    for answer in answers:
        hybrid.check(prompt, answer)


def test_a_prefix_is_known_from_the_third_prompt_on(hybrid: Any) -> None:
    begin = text(4, 100)
    with load(hybrid.bundle, prefix_cache=8 << 20, max_concurrency=1) as llm:
        wanted = [begin + tail for tail in ([9] * 60, [8] * 70, [7] * 90, [8] * 90)]
        completions = [llm.generate(prompt, params(max_tokens=4)) for prompt in wanted]
    # The first keeps states near its end, the second where it leaves the first, which the third continues behind.
    assert [completion.cached_tokens for completion in completions] == [0, 0, 64, 128]
    for prompt, completion in zip(wanted, completions, strict=True):
        hybrid.check(prompt, completion)


class Faulty(OnnxExecutor):
    """Fails after its work is done: with a poisonous token for good, otherwise each third time."""

    POISON, mode, calls = 77, "raise", 0

    def prefill(self, slot: int, past: int, ids: IntArray) -> FloatArray:
        return self._poisoned(super().prefill(slot, past, ids)[None], ids[-1:])[0]

    def decode(self, ids: IntArray, lengths: IntArray) -> FloatArray:
        logits = super().decode(ids, lengths)
        self.calls += 1
        if self.calls % 3 == 0:
            raise ExecutionError("a passing fault")
        return self._poisoned(logits, ids)

    def _poisoned(self, logits: FloatArray, ids: IntArray) -> FloatArray:
        if self.mode == "raise" and (ids == self.POISON).any():
            raise ExecutionError("a planted fault")
        logits[ids == self.POISON] = np.nan
        return logits


@pytest.mark.parametrize("mode", ["raise", "nan"])
def test_a_failed_step_is_repeated_from_the_states_before_it(hybrid: Any, mode: str) -> None:
    executor = Faulty(open_bundle(hybrid.bundle), slots=4, threads=1)
    executor.mode = mode
    wanted = [*prompts(6, 5, 80), [5, Faulty.POISON]]
    with LLM(hybrid.bundle, executor=executor) as llm:
        completions = run(llm, wanted, [12, 5, 12, 7, 12, 12])
    assert executor.calls > 9
    for prompt, completion in zip(wanted, completions, strict=True):
        hybrid.check(prompt, completion)
        failed = Faulty.POISON in [prompt[-1], *completion.token_ids[:-1]] or Faulty.POISON in completion.token_ids
        assert (completion.error is not None) <= failed
    assert completions[-1].finish_reason == "error"


def test_drafts_that_do_not_hold_are_not_remembered(hybrid: Any) -> None:
    prompt, few = [70, 71, 72, 70, 71, 72] * 6, dict.fromkeys((70, 71, 72), 30.0)
    chosen = params(max_tokens=80, logit_bias=few)
    with load(hybrid.bundle, speculation=8) as llm:
        executor = llm.model.engine.core.executor
        verified, all_logits = [], executor.all_logits
        executor.all_logits = lambda *step: verified.append(step) or all_logits(*step)  # type: ignore[method-assign]
        hybrid.check(prompt, llm.generate(prompt, chosen))
    assert verified


def test_prompt_logprobs_of_a_long_prompt(hybrid: Any) -> None:
    prompt = text(11, 150)
    with load(hybrid.bundle) as llm:
        scored = llm.generate(prompt, params(max_tokens=3, prompt_logprobs=0))
    assert scored.prompt_logprobs is not None
    ours = [entry.logprob for entry in scored.prompt_logprobs if entry]
    np.testing.assert_allclose(ours, hybrid.logprobs(prompt[:1], prompt[1:]), atol=2e-3)
    hybrid.check(prompt, scored)


@pytest.mark.parametrize("method", ["keep_state", "read_state", "write_state"])
def test_states_that_cannot_be_cached_change_no_answer(make_hybrid: Any, method: str) -> None:
    bundle = make_hybrid("lfm2").bundle

    class Breaking(OnnxExecutor):
        pass

    def fail(*_: Any) -> Any:
        raise ZeroDivisionError(method)

    setattr(Breaking, method, fail)
    begin, options = text(3, 140), EngineOptions(threads=1, max_concurrency=2, prefix_cache=8 << 20)
    wanted = [begin + prompt for prompt in prompts(4, 6, 20)]
    with LLM(bundle, options=options) as llm:
        expected = [completion.token_ids for completion in run(llm, wanted, [6] * 6)]
    executor = Breaking(open_bundle(bundle), slots=2, threads=1)
    with LLM(bundle, options=options, executor=executor) as llm:
        assert [completion.token_ids for completion in run(llm, wanted, [6] * 6)] == expected
