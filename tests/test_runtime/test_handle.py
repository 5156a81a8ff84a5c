"""One way to submit, read and cancel, blocking and in an event loop."""

import asyncio
import gc
import math
import subprocess
import sys
import time
from pathlib import Path

import pytest

import runtime
from runtime import LLM, AsyncLLM, EngineOptions, SamplingParams

LONG = SamplingParams(max_tokens=240, temperature=0.0, ignore_eos=True)
SHORT = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(tiny_bundle: Path):
    with LLM(tiny_bundle, options=EngineOptions(max_concurrency=4, max_queue=8)) as llm:
        yield llm


def wait_until_idle(llm: LLM | AsyncLLM) -> None:
    end = time.monotonic() + 20
    while llm.stats().running or llm.stats().waiting:
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.mark.parametrize("how", ["closed", "dropped", "left"])
def test_a_stream_that_nobody_reads_is_cancelled(llm, how):
    before = llm.stats().generated_tokens
    handles = [llm.stream([5, 6, 7], LONG) for _ in range(4)]
    answers = [handle.answers[0] for handle in handles]
    while handles:
        handle = handles.pop()
        if how == "closed":
            handle.close()
        elif how == "left":
            with handle:
                pass
    del handle
    gc.collect()
    wait_until_idle(llm)
    assert llm.stats().generated_tokens - before < 4 * 240
    assert {answer.sequence.finish_reason for answer in answers} == {"cancelled"}


def test_a_handle_gives_the_same_whichever_way_it_is_read(llm):
    expected = llm.generate([5, 6, 7], SHORT).token_ids

    async def read() -> tuple[int, ...]:
        return tuple([token async for delta in llm.stream([5, 6, 7], SHORT) for token in delta.token_ids])

    assert tuple(token for delta in llm.stream([5, 6, 7], SHORT) for token in delta.token_ids) == expected
    assert asyncio.run(read()) == expected


def test_a_full_queue_refuses_by_the_call(tiny_bundle):
    async def main() -> list[type | None]:
        async with AsyncLLM(tiny_bundle, options=EngineOptions(max_concurrency=1, max_queue=3)) as model:

            async def handler() -> runtime.RequestHandle:
                return await model.stream("the", LONG)

            streams = await asyncio.gather(*(handler() for _ in range(20)), return_exceptions=True)
            return [type(one) if isinstance(one, Exception) else None for one in streams]

    refused = asyncio.run(main())
    assert refused.count(runtime.QueueFullError) >= 10
    assert set(refused) == {None, runtime.QueueFullError}


@pytest.mark.parametrize("kind", ["stream", "stream_chat"])
def test_a_full_queue_refuses_before_anything_is_awaited(tiny_bundle, kind):
    prompt = "the" if kind == "stream" else [{"role": "user", "content": "the"}]

    async def main() -> list[type]:
        async with AsyncLLM(tiny_bundle, options=EngineOptions(max_concurrency=1, max_queue=3)) as model:
            found, streams = [], []
            for _ in range(20):  # no turn of the event loop comes between them
                try:
                    streams.append(getattr(model, kind)(prompt, LONG))
                except runtime.QueueFullError as error:
                    found.append(type(error))
            assert len([delta async for delta in streams[0]]) > 1
            return found

    assert 16 <= len(asyncio.run(main())) <= 17


def test_a_stream_of_a_closed_model_is_refused_by_the_call(tiny_bundle):
    async def main() -> None:
        model = AsyncLLM(tiny_bundle)
        await model.close()
        with pytest.raises(runtime.EngineClosedError):
            model.stream("the")

    asyncio.run(main())


def test_a_refused_prompt_is_refused_by_await_and_leaves_no_trace(tiny_bundle):
    async def main() -> int:
        async with AsyncLLM(tiny_bundle, options=EngineOptions(max_queue=1)) as model:
            for _ in range(3):
                with pytest.raises(runtime.PromptTooLongError):
                    await model.stream([5] * 300, LONG)
            model.stream([5] * 300, LONG)  # nobody hears of this one
            await asyncio.to_thread(wait_until_idle, model)
            return model.stats().finished

    assert asyncio.run(main()) == 0


@pytest.mark.parametrize("how", ["closed", "closed at once", "dropped", "left", "cancelled"])
def test_an_unread_stream_of_an_event_loop_is_cancelled(tiny_bundle, how):
    async def main() -> runtime.engine.engine.EngineStats:
        async with AsyncLLM(tiny_bundle, options=EngineOptions(max_concurrency=1, max_queue=4)) as model:
            stream = model.stream("the", LONG)
            if how == "closed":
                (await stream).close()
            elif how == "closed at once":
                await stream.aclose()
            elif how == "left":
                async with stream:
                    pass
            elif how == "cancelled":
                task = asyncio.ensure_future(anext(stream))
                await asyncio.sleep(0)
                task.cancel()
            del stream
            await asyncio.sleep(0.01)
            gc.collect()
            await asyncio.to_thread(wait_until_idle, model)
            return model.stats()

    assert asyncio.run(main()).generated_tokens < 240


def test_a_model_is_scored_and_tokenized_in_an_event_loop_too(tiny_bundle, llm):
    async def main() -> None:
        async with AsyncLLM(tiny_bundle) as model:
            assert await model.tokenize("the cat") == llm.tokenize("the cat")
            assert await model.score(["the cat", [5, 6, 7]]) == llm.score(["the cat", [5, 6, 7]])
            assert await model.score("the cat") == llm.score("the cat")

    asyncio.run(main())


def test_a_list_is_answered_together_in_an_event_loop_too(tiny_bundle, llm):
    async def main() -> list[runtime.Completion]:
        async with AsyncLLM(tiny_bundle) as model:
            return await model.generate([[5, 6], [7, 8, 9], [5]], SHORT)

    assert [one.token_ids for one in asyncio.run(main())] == [
        one.token_ids for one in llm.generate([[5, 6], [7, 8, 9], [5]], SHORT)
    ]


def test_the_event_loop_goes_on_while_a_prompt_is_prepared(tiny_bundle):
    class Slow:
        def __init__(self, tokenizer):
            self.tokenizer = tokenizer

        def encode(self, text, **options):
            time.sleep(0.3)
            return self.tokenizer.encode(text, **options)

        def __getattr__(self, name):
            return getattr(self.tokenizer, name)

    async def main() -> float:
        async with AsyncLLM(tiny_bundle) as model:
            model.model.tokenizer = Slow(model.model.tokenizer)
            task, longest, last = asyncio.create_task(model.generate("the", SHORT)), 0.0, time.monotonic()
            while not task.done():
                await asyncio.sleep(0.001)
                longest, last = max(longest, time.monotonic() - last), time.monotonic()
            return longest

    assert asyncio.run(main()) < 0.25


def test_keywords_replace_parameters(llm):
    assert len(llm.generate([5, 6], SHORT, max_tokens=3).token_ids) == 3
    messages = [{"role": "user", "content": "Hi"}]
    assert len(llm.chat(messages, SHORT, max_tokens=2).token_ids) == 2
    assert len(list(llm.stream([5, 6], ignore_eos=True, max_tokens=4))) == 4


@pytest.mark.parametrize("keyword", ["temprature", "max_new_tokens", "enable_thinking"])
def test_a_keyword_that_nobody_reads_is_an_error(llm, keyword):
    with pytest.raises(runtime.OptionError, match=keyword):
        llm.chat([{"role": "user", "content": "Hi"}], **{keyword: 1})
    with pytest.raises(runtime.OptionError, match=keyword):
        llm.generate("Hi", **{keyword: 1})


def test_conversations_are_answered_together(llm):
    chats = [[{"role": "user", "content": text}] for text in ("Hi", "And?")]
    assert [one.text for one in llm.chat(chats, SHORT)] == [llm.chat(chat, SHORT).text for chat in chats]


def test_a_score_is_the_log_probability_of_each_token(llm):
    ids = llm.tokenize("the cat the cat")
    score = llm.score("the cat the cat")
    assert score.token_ids == tuple(ids)
    greedy = llm.generate(ids[:2], max_tokens=1, temperature=0.0, logprobs=300)
    assert score.logprobs[2] == pytest.approx(dict(greedy.logprobs[0].top)[ids[2]], abs=1e-5)
    assert score.perplexity == pytest.approx(math.exp(-sum(score.logprobs[1:]) / (len(ids) - 1)))
    assert [one.perplexity for one in llm.score(["the cat the cat", ids])] == [score.perplexity] * 2


def test_a_bar_is_drawn_where_asked_for(llm, capsys):
    llm.generate([[5], [6], [7]], SHORT, progress=True)
    assert "100%" in capsys.readouterr().err


def test_a_model_tells_what_it_is(llm, tiny_bundle):
    assert repr(llm).startswith(f"LLM({str(tiny_bundle)!r}, 0.")
    assert "context 256" in repr(llm)


def test_a_process_that_forgets_a_running_answer_ends_well(tiny_bundle):
    code = (
        "import sys, runtime\n"
        "llm = runtime.LLM(sys.argv[1])\n"
        "for _ in range(4): handle = llm.stream([5, 6, 7], max_tokens=240, temperature=0, ignore_eos=True)\n"
        "next(handle)\n"
    )
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", code, str(tiny_bundle)], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


def test_progress_of_a_task_is_shown_on_stderr_too(tiny_bundle, capsys):
    async def ask():
        async with AsyncLLM(tiny_bundle) as llm:
            answers = await llm.generate([[5], [6], [7]], SHORT, progress=True)
            return answers, await llm.generate([[5], [6], [7]], SHORT)

    shown, plain = asyncio.run(ask())
    assert [answer.token_ids for answer in shown] == [answer.token_ids for answer in plain]
    assert "100%" in capsys.readouterr().err
