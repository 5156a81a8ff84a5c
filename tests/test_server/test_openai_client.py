"""OpenAI's own client, unmodified, against a real server."""

import asyncio
import json

import openai
import pytest

import runtime

MESSAGES = [{"role": "user", "content": "Hi"}]
SCHEMA = {
    "type": "object",
    "properties": {"color": {"enum": ["red", "green"]}, "sure": {"type": "boolean"}},
    "required": ["color", "sure"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "paint", "parameters": SCHEMA}}


def test_a_chat_answers_what_the_engine_answers(client, chat_bundle):
    answer = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=12)
    with runtime.LLM(chat_bundle) as llm:
        alone = llm.chat(MESSAGES, runtime.SamplingParams(max_tokens=12))
    assert answer.choices[0].message.content == alone.text
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (alone.prompt_tokens, 12)
    assert (answer.object, answer.choices[0].finish_reason) == ("chat.completion", "length")


def test_a_stream_joined_is_the_whole(client):
    whole = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=40)
    stream = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=40, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]][-1] == whole.choices[0].finish_reason
    assert (chunks[-1].choices, chunks[-1].usage.completion_tokens) == ([], whole.usage.completion_tokens)
    assert len({chunk.id for chunk in chunks}) == 1


def test_the_helper_for_streams_understands_ours(client):
    wanted = {"structured_outputs": {"choice": ["red and green"]}}
    with client.chat.completions.stream(model="tiny", messages=MESSAGES, extra_body=wanted) as stream:
        events = [event.type for event in stream]
        final = stream.get_final_completion()
    assert events.count("content.delta") > 1
    assert final.choices[0].message.content == "red and green"


def test_many_at_once_with_the_async_client(server):
    async def ask():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            one = client.chat.completions.create
            answers = [one(model="tiny", messages=MESSAGES, max_tokens=8, seed=7, temperature=1) for _ in range(12)]
            return [answer.choices[0].message.content for answer in await asyncio.gather(*answers)]

    assert len(set(asyncio.run(ask()))) == 1


def test_an_async_stream(server):
    async def ask():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            stream = await client.chat.completions.create(
                model="tiny", messages=MESSAGES, max_tokens=8, stream=True, logprobs=True
            )
            return [chunk async for chunk in stream]

    chunks = asyncio.run(ask())
    assert sum(len(c.choices[0].logprobs.content) for c in chunks if c.choices[0].logprobs) == 8


def test_completions(client):
    answer = client.completions.create(model="tiny", prompt=["the", "an"], max_tokens=6, n=2, temperature=1, seed=3)
    again = client.completions.create(model="tiny", prompt="the", max_tokens=6, n=2, temperature=1, seed=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert [c.text for c in answer.choices[:2]] == [c.text for c in again.choices]
    assert again.choices[0].text != again.choices[1].text


def test_a_prompt_of_token_ids_is_the_same_prompt(client, server):
    ids = server.model.tokenizer.encode("then an")
    texts = [client.completions.create(model="tiny", prompt=p, max_tokens=9).choices[0].text for p in ("then an", ids)]
    assert texts[0] == texts[1]


def test_a_completion_may_echo_its_prompt_in_a_stream_too(client):
    whole = client.completions.create(model="tiny", prompt="the", max_tokens=5, echo=True).choices[0].text
    parts = client.completions.create(model="tiny", prompt="the", max_tokens=5, echo=True, stream=True)
    assert whole.startswith("the")
    assert "".join(part.choices[0].text for part in parts) == whole


def test_the_prompt_alone_can_be_scored(client):
    answer = client.completions.create(model="tiny", prompt="then an", max_tokens=0, echo=True, logprobs=2)
    scores = answer.choices[0].logprobs
    assert answer.choices[0].text == "".join(scores.tokens) == "then an"
    assert scores.token_logprobs[0] is None
    assert max(scores.token_logprobs[1:]) <= 0
    assert {len(top) for top in scores.top_logprobs[1:]} == {2}


def test_logprobs_are_of_the_tokens_of_the_text(client):
    answer = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=20, logprobs=True, top_logprobs=3
    )
    entries = answer.choices[0].logprobs.content
    content = b"".join(bytes(entry.bytes) for entry in entries)
    assert content.decode(errors="replace") == answer.choices[0].message.content
    assert all(entry.top_logprobs[0].logprob >= entry.logprob and len(entry.top_logprobs) == 3 for entry in entries)
    assert entries[0].token == entries[0].top_logprobs[0].token


def test_stop_and_logit_bias(client, server):
    (letter,) = server.model.tokenizer.encode("Z")
    biased = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=4, logit_bias={letter: 100})
    stopped = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=9, logit_bias={letter: 100}, stop=["ZZZ"]
    )
    assert biased.choices[0].message.content == "ZZZZ"
    assert (stopped.choices[0].message.content, stopped.choices[0].finish_reason) == ("", "stop")
    assert stopped.usage.completion_tokens == 3


def test_an_answer_is_json_of_the_schema(client):
    answer = client.chat.completions.create(
        model="tiny",
        messages=MESSAGES,
        temperature=1,
        response_format={"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}},
    )
    value = json.loads(answer.choices[0].message.content)
    assert value["color"] in ("red", "green")
    assert isinstance(value["sure"], bool)


def test_json_parsed_by_the_client(client):
    pydantic = pytest.importorskip("pydantic")

    class Answer(pydantic.BaseModel):
        sure: bool

    answer = client.chat.completions.parse(model="tiny", messages=MESSAGES, response_format=Answer)
    assert answer.choices[0].message.parsed.sure in (True, False)


def test_choice_and_regex_beyond_openai(client):
    def ask(**wanted):
        extra = {"structured_outputs": wanted}
        return client.chat.completions.create(model="tiny", messages=MESSAGES, extra_body=extra).choices[0].message

    assert ask(choice=["yes", "no"]).content in ("yes", "no")
    assert ask(regex="[0-9]{3}").content.isdecimal()


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "paint"}}])
def test_a_tool_call_that_is_asked_for_is_made(client, choice):
    answer = client.chat.completions.create(model="tiny", messages=MESSAGES, tools=[TOOL], tool_choice=choice)
    (call, *_) = answer.choices[0].message.tool_calls
    assert (call.function.name, call.type) == ("paint", "function")
    assert set(json.loads(call.function.arguments)) == {"color", "sure"}
    assert (answer.choices[0].finish_reason, answer.choices[0].message.content) == ("tool_calls", None)


def test_a_streamed_tool_call(client):
    with client.chat.completions.stream(
        model="tiny", messages=MESSAGES, tools=[TOOL], tool_choice="required", parallel_tool_calls=False
    ) as stream:
        events = [event.type for event in stream]
        message = stream.get_final_completion().choices[0].message
    (call,) = message.tool_calls
    assert json.loads(call.function.arguments)["color"] in ("red", "green")
    assert "tool_calls.function.arguments.done" in events


def test_tools_that_are_not_called_leave_the_text_alone(client):
    answer = client.chat.completions.create(
        model="tiny", messages=MESSAGES, tools=[TOOL], max_tokens=6, extra_body={"ignore_eos": True}
    )
    assert answer.choices[0].message.content
    assert answer.choices[0].message.tool_calls is None


def test_a_conversation_with_calls_and_results_is_taken(client):
    call = {"id": "1", "type": "function", "function": {"name": "paint", "arguments": "{}"}}
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "Be short."}]},
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "done"},
    ]
    answer = client.chat.completions.create(model="tiny", messages=messages, tools=[TOOL], max_tokens=3)
    assert answer.usage.completion_tokens == 3


def test_what_clients_send_beside_is_ignored(client):
    answer = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_completion_tokens=2, user="me", store=False, metadata={"a": "b"},
        service_tier="auto", reasoning_effort="none", modalities=["text"], seed=-1, prompt_cache_key="k",
    )  # fmt: skip
    assert answer.usage.completion_tokens == 2


def test_the_same_prompt_again_is_found_in_the_cache(client):
    long = [{"role": "user", "content": "the same beginning " * 20}]
    usages = [client.chat.completions.create(model="tiny", messages=long, max_tokens=1).usage for _ in range(2)]
    assert usages[1].prompt_tokens_details.cached_tokens > usages[1].prompt_tokens // 2


def test_models(client):
    (model,) = client.models.list().data
    assert (model.id, model.max_model_len) == ("tiny", 2048)
    assert client.models.retrieve("tiny").owned_by == "onnxlm"
    with pytest.raises(openai.NotFoundError, match="'other'"):
        client.models.retrieve("other")


ERRORS = {
    "model": (openai.NotFoundError, {"model": "other"}, "model_not_found", "'other'"),
    "context": (openai.BadRequestError, {"messages": [{"role": "user", "content": "x" * 3000}]}, None, "30.. .*2048"),
    "range": (openai.BadRequestError, {"temperature": -1}, None, "temperature must be"),
    "type": (openai.BadRequestError, {"temperature": "hot"}, None, "temperature: expected a number"),
    "unknown": (openai.BadRequestError, {"extra_body": {"tempratur": 1}}, None, "known keys are"),
    "id": (openai.BadRequestError, {"logit_bias": {"99999": 1}}, None, "0 to 319"),
    "schema": (
        openai.BadRequestError,
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nothing"}}}},
        None,
        "structured output",
    ),
    "tool": (openai.BadRequestError, {"tools": [TOOL], "tool_choice": {"type": "function"}}, None, "tool_choice"),
    "no tools": (openai.BadRequestError, {"tool_choice": "required"}, None, "there are no tools"),
    "role": (openai.BadRequestError, {"messages": [{"content": "x"}]}, None, r"messages\[0\]"),
    "picture": (
        openai.BadRequestError,
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        None,
        "reads text only",
    ),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("case", ERRORS)
def test_errors_are_those_that_the_client_knows(client, case, stream):
    kind, change, code, words = ERRORS[case]
    with pytest.raises(kind, match=words) as caught:
        client.chat.completions.create(**({"model": "tiny", "messages": MESSAGES, "stream": stream} | change))
    assert caught.value.code == (code or caught.value.code)
    assert caught.value.type == "invalid_request_error"
    assert caught.value.request_id


def test_a_timeout_of_the_request_is_an_error(client):
    with pytest.raises(openai.APIStatusError, match="longer than its timeout") as caught:
        client.chat.completions.create(model="tiny", messages=MESSAGES, extra_body={"timeout": 0.0})
    assert caught.value.status_code == 408


def test_a_timeout_within_a_stream_is_an_error_in_the_stream(client):
    stream = client.chat.completions.create(model="tiny", messages=MESSAGES, extra_body={"timeout": 0.0}, stream=True)
    with pytest.raises(openai.APIError, match="longer than its timeout"):
        list(stream)
