"""OpenAI's own client, unmodified, and its Responses API against a real server."""

import asyncio
import json

import openai
import pytest

from runtime.server.openai.responses.protocol import LOGPROBS

SCHEMA = {
    "type": "object",
    "properties": {"color": {"enum": ["red", "green"]}, "sure": {"type": "boolean"}},
    "required": ["color", "sure"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "name": "paint", "parameters": SCHEMA, "strict": True}
FORMAT = {"format": {"type": "json_schema", "name": "x", "strict": True, "schema": SCHEMA}}


def ask(client, given="Hi", **options):
    return client.responses.create(**({"model": "tiny", "input": given, "max_output_tokens": 8} | options))


def streamed(client, given="Hi", **options):
    """(event types without repeated deltas, the events)"""
    events = list(ask(client, given, stream=True, **options))
    kinds = [event.type.removeprefix("response.") for event in events]
    return [kind for before, kind in zip([None, *kinds], kinds, strict=False) if kind != before], events


def test_a_response_answers_what_a_chat_answers(client):
    response = ask(client, "Hi", max_output_tokens=12)
    chat = client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "Hi"}], max_tokens=12)
    assert response.output_text == chat.choices[0].message.content
    assert (response.usage.input_tokens, response.usage.output_tokens) == (chat.usage.prompt_tokens, 12)
    assert (response.object, response.status, response.error) == ("response", "incomplete", None)
    assert response.incomplete_details.reason == "max_output_tokens"


def test_an_answer_that_ends_by_itself_is_complete(client):
    response = ask(client, text=FORMAT, max_output_tokens=60)
    (message,) = response.output
    assert (response.status, response.incomplete_details, message.status) == ("completed", None, "completed")
    assert message.id.startswith("msg_")
    assert response.completed_at >= response.created_at


def test_what_was_asked_stands_in_the_answer(client):
    response = ask(client, instructions="Be short.", temperature=0.5, top_p=0.9, metadata={"a": "b"}, tools=[TOOL])
    assert (response.instructions, response.temperature, response.top_p) == ("Be short.", 0.5, 0.9)
    assert (response.metadata, response.tools[0].name, response.tool_choice) == ({"a": "b"}, "paint", "auto")
    assert (response.model, response.store, response.parallel_tool_calls) == ("tiny", True, True)


def test_items_are_the_messages_of_a_chat(client):
    items = [
        {"role": "developer", "content": "Be short."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Ho", "annotations": []}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"role": "user", "content": "And?"},
    ]
    messages = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Ho"},
        {"role": "user", "content": "And?"},
    ]
    chat = client.chat.completions.create(model="tiny", messages=messages, max_tokens=8)
    assert ask(client, items).output_text == chat.choices[0].message.content
    assert ask(client, items[1:], instructions="Be short.").output_text == chat.choices[0].message.content


TEXT_EVENTS = [
    "created", "in_progress", "output_item.added", "content_part.added", "output_text.delta", "output_text.done",
    "content_part.done", "output_item.done",
]  # fmt: skip


def test_a_stream_is_the_response_in_typed_events(client):
    whole = ask(client, max_output_tokens=40)
    kinds, events = streamed(client, max_output_tokens=40)
    assert kinds == [*TEXT_EVENTS, "incomplete"]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert deltas == whole.output_text == events[-1].response.output_text
    assert events[-1].response.usage.output_tokens == 40
    assert len({event.response.id for event in events if hasattr(event, "response")}) == 1


def test_the_helper_for_streams_understands_ours(client):
    with client.responses.stream(model="tiny", input="Hi", text=FORMAT) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[-1] == "response.completed"
    assert json.loads(final.output_text)["color"] in ("red", "green")


def test_the_async_client_whole_and_streamed(server):
    async def both():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            whole = await ask(client)
            stream = await ask(client, stream=True)
            return whole.output_text, "".join([e.delta async for e in stream if e.type.endswith("text.delta")])

    whole, pieces = asyncio.run(both())
    assert whole == pieces


def test_many_at_once_have_ids_of_their_own(server):
    async def many():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(ask(client) for _ in range(10)))

    responses = asyncio.run(many())
    assert len({response.id for response in responses}) == 10
    assert len({response.output_text for response in responses}) == 1


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "paint"}])
def test_a_function_call_that_is_asked_for_is_made(client, choice):
    response = ask(client, tools=[TOOL], tool_choice=choice, parallel_tool_calls=False, max_output_tokens=200)
    call = response.output[0]
    assert (call.type, call.name, call.status, response.status) == ("function_call", "paint", "completed", "completed")
    assert set(json.loads(call.arguments)) == {"color", "sure"}
    assert response.output_text == ""


def test_a_streamed_function_call(client):
    options = {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False, "max_output_tokens": 200}
    kinds, events = streamed(client, **options)
    call = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"]
    assert kinds == ["created", "in_progress", *call, "completed"]
    item = events[-1].response.output[0]
    assert "".join(event.delta for event in events if event.type.endswith("arguments.delta")) == item.arguments
    assert len({event.item_id for event in events if hasattr(event, "item_id")} | {item.id}) == 1


def test_calls_and_outputs_go_on_as_a_chat_does(client):
    call = ask(client, tools=[TOOL], tool_choice="required", parallel_tool_calls=False, max_output_tokens=200).output[0]
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "done"}
    response = ask(client, [{"role": "user", "content": "Hi"}, call, output], tools=[TOOL])
    function = {"name": "paint", "arguments": call.arguments}
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "tool_calls": [{"id": call.call_id, "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": call.call_id, "content": "done"},
    ]
    tool = {"type": "function", "function": {"name": "paint", "parameters": SCHEMA}}
    chat = client.chat.completions.create(model="tiny", messages=messages, tools=[tool], max_tokens=8)
    assert response.output_text == chat.choices[0].message.content


def test_json_of_a_schema_and_json_parsed_by_the_client(client):
    pydantic = pytest.importorskip("pydantic")

    class Answer(pydantic.BaseModel):
        sure: bool

    parsed = client.responses.parse(model="tiny", input="Hi", text_format=Answer).output_parsed
    free = ask(client, text={"format": {"type": "json_object"}}, temperature=1, max_output_tokens=400)
    assert parsed.sure in (True, False)
    assert free.status == "incomplete" or isinstance(json.loads(free.output_text), dict)


def test_logprobs_where_they_are_included(client):
    response = ask(client, include=[LOGPROBS], top_logprobs=2)
    (message,) = response.output
    entries = message.content[0].logprobs
    assert b"".join(bytes(entry.bytes) for entry in entries).decode(errors="replace") == response.output_text
    assert {len(entry.top_logprobs) for entry in entries} == {2}
    _, events = streamed(client, include=[LOGPROBS])
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert sum(len(event.logprobs) for event in deltas) <= len(entries)
    assert ask(client).output[0].content[0].logprobs == []


def test_what_has_no_meaning_here_is_ignored(client):
    response = ask(
        client, reasoning={"effort": "none"}, service_tier="auto", user="me", safety_identifier="x",
        prompt_cache_key="k", include=["reasoning.encrypted_content"], truncation="disabled", background=False,
        text={"verbosity": "low"}, stream_options={"include_obfuscation": False}, stream=False,
    )  # fmt: skip
    assert response.usage.output_tokens == 8
    assert response.reasoning.effort == "none"


def test_the_same_beginning_is_found_in_the_cache(client):
    usages = [ask(client, "the same beginning " * 20, max_output_tokens=1).usage for _ in range(2)]
    assert usages[1].input_tokens_details.cached_tokens > usages[1].input_tokens // 2
    assert usages[1].total_tokens == usages[1].input_tokens + 1


ERRORS = {
    "model": (openai.NotFoundError, {"model": "other"}, "model", "'other'"),
    "context": (openai.BadRequestError, {"input": "x" * 3000}, None, "30.. .*2048"),
    "range": (openai.BadRequestError, {"temperature": -1}, "temperature", "temperature must be"),
    "limit": (openai.BadRequestError, {"max_output_tokens": 0}, "max_output_tokens", "at least 1"),
    "unknown": (openai.BadRequestError, {"extra_body": {"tempratur": 1}}, "tempratur", "known keys are"),
    "chat's": (openai.BadRequestError, {"extra_body": {"max_tokens": 1}}, "max_tokens", "use `max_output_tokens`"),
    "background": (openai.BadRequestError, {"background": True}, "background", "at once"),
    "truncation": (openai.BadRequestError, {"truncation": "auto"}, "truncation", "disabled"),
    "conversation": (openai.BadRequestError, {"conversation": "c"}, "conversation", "previous_response_id"),
    "include": (openai.BadRequestError, {"include": ["file_search_call.results"]}, "include[0]", "encrypted_content"),
    "logprobs": (openai.BadRequestError, {"top_logprobs": 2}, "top_logprobs", "include"),
    "tool": (openai.BadRequestError, {"tools": [{"type": "web_search"}]}, "tools[0]", "'web_search' is not supported"),
    "tool's key": (openai.BadRequestError, {"tools": [TOOL | {"x": 1}]}, "tools[0].x", "unknown key"),
    "tool's name": (openai.BadRequestError, {"tools": [TOOL | {"name": "a b"}]}, "tools[0]", "name"),
    "choice": (openai.BadRequestError, {"tools": [TOOL], "tool_choice": {"type": "x"}}, "tool_choice", "none, auto"),
    "no tools": (openai.BadRequestError, {"tool_choice": "required"}, "tool_choice", "there are no tools"),
    "format": (openai.BadRequestError, {"text": {"format": {"type": "xml"}}}, "text.format", "json_schema"),
    "schema": (
        openai.BadRequestError,
        {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "nothing"}}}},
        "text.format.schema",
        "structured output",
    ),
    "metadata": (openai.BadRequestError, {"metadata": {"x" * 65: ""}}, "metadata", "64"),
    "no items": (openai.BadRequestError, {"input": []}, "input", "at least one item"),
    "picture": (
        openai.BadRequestError,
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
        "input[0].content[0]",
        "read text only",
    ),
    "item": (openai.BadRequestError, {"input": [{"type": "computer_call"}]}, "input[0]", "is not supported"),
    "role": (openai.BadRequestError, {"input": [{"role": "robot", "content": ""}]}, "input[0].role", "must be one"),
    "orphan": (
        openai.BadRequestError,
        {"input": [{"type": "function_call_output", "call_id": "c", "output": ""}]},
        "input[0].call_id",
        "no function call",
    ),
    "previous": (openai.NotFoundError, {"previous_response_id": "resp_x"}, "previous_response_id", "started again"),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("case", ERRORS)
def test_errors_are_those_that_the_client_knows(client, case, stream):
    kind, change, param, words = ERRORS[case]
    with pytest.raises(kind, match=words) as caught:
        ask(client, **({"stream": stream} | change))
    assert caught.value.param == param
    assert caught.value.type == "invalid_request_error"
    assert caught.value.request_id


def test_a_timeout_of_the_request_is_an_error(client):
    with pytest.raises(openai.APIStatusError, match="longer than its timeout"):
        ask(client, extra_body={"timeout": 0.0})
    _, events = streamed(client, extra_body={"timeout": 0.0})
    assert (events[-1].type, events[-1].response.status) == ("response.failed", "failed")
    assert "timeout" in events[-1].response.error.message
