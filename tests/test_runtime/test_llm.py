"""The blocking and the async interface over a tiny Llama: texts, endings, and answers that never change."""

import asyncio
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import runtime
from runtime import LLM, AsyncLLM, Completion, EngineOptions, PromptTooLongError, RequestError, SamplingParams
from runtime.bundle.bundle import open_bundle
from runtime.ort.batch_invariance import check_determinism
from runtime.ort.executor import OnnxExecutor

GREEDY = SamplingParams(max_tokens=24, temperature=0, logprobs=2, ignore_eos=True)


def load(folder: Path, **options: Any) -> LLM:
    return LLM(folder, options=EngineOptions(**({"threads": 1, "max_concurrency": 4} | options)))


@pytest.fixture(scope="module")
def llm(tiny_bundle: Path) -> Iterator[LLM]:
    with load(tiny_bundle) as llm:
        yield llm


def essence(completion: Completion) -> tuple[Any, ...]:
    """What must not change; logprobs are compared as exact floats, so logits are compared bit by bit."""
    return completion.text, completion.token_ids, completion.finish_reason, completion.logprobs


PROMPTS = ["the rain in the", "a", "when the other one " * 6, "the rain in the north", "Größe 😀", "then " * 30, "on"]
PARAMS = [GREEDY, SamplingParams(max_tokens=15, temperature=1.2, top_p=0.9, seed=5, logprobs=0)]


@pytest.fixture(scope="module")
def alone(tiny_bundle: Path) -> dict[tuple[str, int], tuple[Any, ...]]:
    """Every request in an engine of its own."""
    results = {}
    for prompt in PROMPTS:
        for kind, params in enumerate(PARAMS):
            with load(tiny_bundle, max_concurrency=1) as llm:
                results[prompt, kind] = essence(llm.generate(prompt, params))
    return results


@pytest.mark.parametrize("chunk", [2, 7, 33, 512])
@pytest.mark.parametrize("slots", [1, 3, 8])
def test_an_answer_is_bitwise_the_same_in_any_company(
    tiny_bundle: Path, alone: dict[tuple[str, int], tuple[Any, ...]], chunk: int, slots: int
) -> None:
    keys = [*alone, *alone]
    random.Random(chunk * slots).shuffle(keys)
    with load(tiny_bundle, max_concurrency=slots, prefill_chunk=chunk) as llm:
        streams = []
        for prompt, kind in keys:  # arriving at different times, the second half finding warm prefixes
            streams.append(llm.stream(prompt, PARAMS[kind]))
            time.sleep(random.Random(chunk).random() / 500)
        for key, stream in zip(keys, streams, strict=True):
            deltas = list(stream)
            logprobs = tuple(entry for delta in deltas for entry in delta.logprobs)
            tokens = tuple(token for delta in deltas for token in delta.token_ids)
            text = "".join(delta.text for delta in deltas)
            assert (text, tokens, deltas[-1].finish_reason, logprobs) == alone[key]
        assert llm.model.engine.stats().cached_tokens > 0


def test_the_seed_that_is_reported_repeats_the_answer(llm: LLM) -> None:
    first = llm.generate("the", SamplingParams(max_tokens=12, temperature=1.5))
    again = llm.generate("the", SamplingParams(max_tokens=12, temperature=1.5, seed=first.seed))
    assert again.token_ids == first.token_ids


def test_a_stream_joined_is_the_text(llm: LLM) -> None:
    params = SamplingParams(max_tokens=80, temperature=2.0, seed=1)
    assert "".join(delta.text for delta in llm.stream("x", params)) == llm.generate("x", params).text


def test_a_stop_string_ends_the_answer_before_itself(llm: LLM) -> None:
    whole = llm.generate("the rain", GREEDY).text
    stop = whole[5:8]
    stopped = llm.generate("the rain", SamplingParams(max_tokens=24, temperature=0, ignore_eos=True, stop=stop))
    assert stopped.text == whole[: whole.index(stop)]
    assert stopped.finish_reason == "stop"


def test_min_tokens_hold_back_stop_strings(llm: LLM) -> None:
    whole = llm.generate("the rain", GREEDY)
    params = SamplingParams(max_tokens=24, min_tokens=20, temperature=0, ignore_eos=True, stop=list(whole.text[:9]))
    assert len(llm.generate("the rain", params).token_ids) >= 20


def test_a_stop_id_is_among_the_tokens_and_not_in_the_text(llm: LLM) -> None:
    whole = llm.generate("the rain", GREEDY)
    stop = whole.token_ids[4]
    stopped = llm.generate("the rain", SamplingParams(max_tokens=24, temperature=0, stop_token_ids=[stop]))
    place = whole.token_ids.index(stop)
    assert stopped.token_ids == whole.token_ids[: place + 1]
    assert whole.text.startswith(stopped.text)


def test_a_chat_is_its_rendered_template(llm: LLM) -> None:
    messages = [{"role": "user", "content": "the rain"}]
    rendered = "<|im_start|>user\nthe rain<|im_end|>\n<|im_start|>assistant\n"
    ids = llm.model.tokenizer.encode(rendered, add_special_tokens=False)
    assert llm.chat(messages, GREEDY).token_ids == llm.generate(ids, GREEDY).token_ids
    deltas = list(llm.stream_chat(messages, GREEDY))
    assert tuple(token for delta in deltas for token in delta.token_ids) == llm.generate(ids, GREEDY).token_ids


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "empty"),
        ([], "empty"),
        ([320], "outside the vocabulary"),
        ([-1], "outside the vocabulary"),
        ([1.5], "something else"),
        ([True], "something else"),
        (17, "text or a list"),
        (None, "text or a list"),
        ("\ud800", "surrogate"),
    ],
)
def test_a_bad_prompt_is_refused(llm: LLM, prompt: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        llm.stream(prompt)


def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers(llm: LLM) -> None:
    with pytest.raises(PromptTooLongError, match="257 tokens and the context holds 256"):
        llm.generate([5] * 257)


def test_one_refused_prompt_refuses_the_list(llm: LLM) -> None:
    finished = llm.model.engine.stats().finished
    with pytest.raises(RequestError):
        llm.generate(["the", ""])
    assert llm.model.engine.stats().finished == finished
    assert llm.generate([], GREEDY) == []


def test_a_long_list_is_fed_through_a_short_queue(tiny_bundle: Path) -> None:
    with load(tiny_bundle, max_queue=2, max_concurrency=2) as llm:
        completions = llm.generate([[number, 9] for number in range(40)], SamplingParams(max_tokens=3))
    assert [completion.prompt_tokens for completion in completions] == [2] * 40


def test_async_streams_run_together(tiny_bundle: Path, llm: LLM) -> None:
    async def main() -> list[Completion]:
        async with AsyncLLM(tiny_bundle, options=EngineOptions(threads=1)) as model:
            return list(await asyncio.gather(*(model.generate(prompt, GREEDY) for prompt in PROMPTS)))

    assert [essence(c) for c in asyncio.run(main())] == [essence(llm.generate(prompt, GREEDY)) for prompt in PROMPTS]


def test_cancelling_a_task_cancels_its_request(tiny_bundle: Path) -> None:
    async def main() -> runtime.engine.engine.EngineStats:
        async with AsyncLLM(tiny_bundle, options=EngineOptions(threads=1)) as model:
            params = SamplingParams(max_tokens=250, ignore_eos=True)
            task = asyncio.create_task(model.generate("the", params))
            while not model.stats().generated_tokens:
                await asyncio.sleep(0)
            task.cancel()
            while model.model.engine.stats().running or model.model.engine.stats().waiting:
                await asyncio.sleep(0.001)
            return model.model.engine.stats()

    stats = asyncio.run(main())
    assert (stats.finished, stats.running) == (1, 0)
    assert stats.generated_tokens < 200


def test_an_async_error_is_the_request_s_error(tiny_bundle: Path) -> None:
    async def main() -> None:
        async with AsyncLLM(tiny_bundle, options=EngineOptions(threads=1)) as model:
            with pytest.raises(RequestError):
                await model.generate("")
            chat = await model.chat([{"role": "user", "content": "the"}], GREEDY)
            streamed = [delta async for delta in model.stream_chat([{"role": "user", "content": "the"}], GREEDY)]
            assert "".join(delta.text for delta in streamed) == chat.text

    asyncio.run(main())


def test_structured_output_is_what_was_asked_for(llm: LLM) -> None:
    wanted = runtime.StructuredOutput(choice=("north", "south"))
    params = SamplingParams(max_tokens=20, temperature=1.5, seed=4, n=4, structured=wanted)
    completion = llm.generate("the", params)
    texts = {answer.text for answer in (completion, *completion.alternatives)}
    assert texts <= {"north", "south"}
    with pytest.raises(RequestError, match="structured output"):
        llm.generate("the", SamplingParams(structured=runtime.StructuredOutput(regex="(")))


def test_the_self_test_finds_determinism_here(tiny_bundle: Path, llm: LLM) -> None:
    with load(tiny_bundle, self_test=True) as tested:
        assert tested.deterministic is True
        assert essence(tested.generate("the", GREEDY)) == essence(llm.generate("the", GREEDY))
    assert llm.deterministic is None


def test_the_self_test_finds_rows_that_disturb_each_other(tiny_bundle: Path) -> None:
    class Disturbed(OnnxExecutor):
        def decode(self, ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
            return super().decode(ids, lengths) + np.float32(1e-4) * len(ids)

    found = check_determinism(Disturbed(open_bundle(tiny_bundle), slots=2, threads=1))
    assert (found.chunks, found.company, found.complete) == (True, False, False)
