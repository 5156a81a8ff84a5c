"""What clients of other servers send: neutral values pass, useful ones work, others are refused by name."""

import asyncio
import gzip
import json
import re
import time
import zlib

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime.server.app import create_app

CHAT = {"messages": [{"role": "user", "content": "Hello there, who are you"}], "max_tokens": 4, "temperature": 0}
TEXT = {"prompt": "the Zürich", "max_tokens": 4, "temperature": 0}
NEUTRAL = [
    {"best_of": 1}, {"suffix": ""}, {"skip_special_tokens": True}, {"prompt_logprobs": None}, {"top_k": -1},
    {"cache_prompt": True}, {"cache_prompt": False}, {"keep_alive": "5m"}, {"keep_alive": -1},
    {"use_beam_search": False}, {"length_penalty": 1.0}, {"early_stopping": False}, {"detokenize": True},
    {"spaces_between_special_tokens": True}, {"include_stop_str_in_output": False}, {"truncation": "auto"},
    {"priority": 0}, {"guided_json": None},
]  # fmt: skip
REFUSED = [
    {"best_of": 2}, {"suffix": "x"}, {"prompt_logprobs": 5}, {"use_beam_search": True}, {"length_penalty": 1.5},
    {"include_stop_str_in_output": True}, {"keep_alive": 0}, {"chat_template": "x"}, {"best_of": True},
    {"truncate_prompt_tokens": 5}, {"allowed_token_ids": [1]}, {"top_k": -2}, {"guided_whitespace_pattern": " "},
]  # fmt: skip


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
@pytest.mark.parametrize("field", NEUTRAL, ids=str)
def test_neutral_values_change_nothing(http, path, field):
    body = CHAT if path.startswith("chat") else TEXT
    answers = [http.post(f"/v1/{path}", json=body | extra) for extra in ({}, field)]
    assert [answer.status_code for answer in answers] == [200, 200], answers[1].text
    first, second = (answer.json()["choices"] for answer in answers)
    assert first == second


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
@pytest.mark.parametrize("field", REFUSED, ids=str)
def test_other_values_are_refused_by_name(http, path, field):
    answer = http.post(f"/v1/{path}", json=(CHAT if path.startswith("chat") else TEXT) | field)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, next(iter(field)))
    assert next(iter(field)) in error["message"]


@pytest.mark.parametrize(
    ("field", "pattern"),
    [({"guided_choice": ["yes", "no"]}, "yes|no"), ({"guided_regex": "[0-9]{3}"}, "[0-9]{3}")],
    ids=str,
)
def test_guided_fields_are_structured_outputs(http, field, pattern):
    answer = http.post("/v1/chat/completions", json=CHAT | field | {"max_tokens": 20})
    assert answer.status_code == 200, answer.text
    assert re.fullmatch(pattern, answer.json()["choices"][0]["message"]["content"])
    both = http.post("/v1/chat/completions", json=CHAT | field | {"structured_outputs": {"regex": "a"}})
    assert both.status_code == 400


NOT_ENFORCED = {"type": "array", "uniqueItems": True}
_WANTED = {"type": "json_schema", "name": "a", "schema": NOT_ENFORCED}
_ASK = {"messages": CHAT["messages"], "max_tokens": 4}
LOCATED = {
    "response_format.json_schema.schema": (
        "/v1/chat/completions",
        CHAT | {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": NOT_ENFORCED}}},
    ),
    "tools[0].function.parameters": (
        "/v1/chat/completions",
        CHAT
        | {"tool_choice": "required"}
        | {"tools": [{"type": "function", "function": {"name": "f", "parameters": NOT_ENFORCED}}]},
    ),
    "structured_outputs": ("/v1/chat/completions", CHAT | {"structured_outputs": {"json": NOT_ENFORCED}}),
    "text.format.schema": ("/v1/responses", {"input": "Hi", "text": {"format": _WANTED}}),
    "output_config.format.schema": (
        "/v1/messages",
        _ASK | {"model": "tiny", "output_config": {"format": {"type": "json_schema", "schema": NOT_ENFORCED}}},
    ),
    "format": ("/api/chat", {"model": "tiny", "messages": CHAT["messages"], "format": NOT_ENFORCED}),
}


@pytest.mark.parametrize("field", LOCATED)
def test_a_schema_that_cannot_be_enforced_is_named_by_its_field(http, caplog, field):
    path, body = LOCATED[field]
    with caplog.at_level("INFO", logger="onnxlm.requests"):
        answer = http.post(path, json=body)
        until = time.monotonic() + 5
        while "400" not in caplog.text and time.monotonic() < until:  # the line follows the answer
            time.sleep(0.01)
    assert answer.status_code == 400
    assert "uniqueItems" in answer.text
    if "/v1/messages" not in path and "/api" not in path:  # those have no place for it
        assert answer.json()["error"]["param"] == field
    assert field in caplog.text


def events(answer):
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]


def test_usage_in_every_chunk(http):
    options = {"stream": True, "stream_options": {"continuous_usage_stats": True}, "ignore_eos": True}
    counts = [
        event["usage"]["completion_tokens"] for event in events(http.post("/v1/completions", json=TEXT | options))
    ]
    assert counts == sorted(counts)
    assert counts[-1] == 4


def test_offsets_of_a_stream_count_the_echoed_prompt(http):
    options = {"echo": True, "logprobs": 1, "ignore_eos": True}
    whole = http.post("/v1/completions", json=TEXT | options).json()["choices"][0]["logprobs"]["text_offset"]
    streamed = events(http.post("/v1/completions", json=TEXT | options | {"stream": True}))
    offsets = [o for event in streamed for choice in event["choices"] for o in choice["logprobs"]["text_offset"]]
    assert offsets == whole


def test_a_message_is_continued(http):
    chat = [*CHAT["messages"], {"role": "assistant", "content": "The sky is"}]
    wanted = {"messages": chat, "add_generation_prompt": False, "continue_final_message": True}
    answer = http.post("/v1/chat/completions", json=CHAT | wanted)
    prompt = "<|im_start|>user\nHello there, who are you<|im_end|>\n<|im_start|>assistant\nThe sky is"
    ids = http.post("/tokenize", json={"prompt": prompt, "add_special_tokens": False}).json()["tokens"]
    assert answer.json()["usage"]["prompt_tokens"] == len(ids)
    refused = http.post("/v1/chat/completions", json=CHAT | {"messages": chat, "continue_final_message": True})
    assert refused.json()["error"]["param"] == "continue_final_message"


def test_a_refusal_is_what_the_assistant_said(http):
    said = [
        {"role": "assistant", "content": None, "refusal": "I will not say"},
        {"role": "user", "content": "Why not?"},
    ]
    parts = [{"role": "assistant", "content": [{"type": "refusal", "refusal": "I will not say"}]}, said[1]]
    text = [{"role": "assistant", "content": "I will not say"}, said[1]]
    counts = [
        http.post("/v1/chat/completions", json=CHAT | {"messages": [*CHAT["messages"], *turns]}).json()["usage"]
        for turns in (said, parts, text)
    ]
    assert len({count["prompt_tokens"] for count in counts}) == 1


@pytest.mark.parametrize(("coding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_compressed_bodies_are_read(http, coding, pack):
    headers = {"content-type": "application/json", "content-encoding": coding}
    assert http.post("/v1/completions", content=pack(json.dumps(TEXT).encode()), headers=headers).status_code == 200
    assert http.post("/v1/completions", content=b"{}", headers=headers).status_code == 400
    assert http.post("/v1/completions", content=pack(b"x")[:-4], headers=headers).status_code == 400
    assert http.post("/v1/completions", content=pack(b" " * (5 << 20)), headers=headers).status_code == 413


def test_other_compressions_are_a_415(http):
    headers = {"content-type": "application/json", "content-encoding": "br"}
    answer = http.post("/v1/completions", content=b"{}", headers=headers)
    assert (answer.status_code, "gzip" in answer.text) == (415, True)


def test_the_tokenizer_tells_of_itself(http):
    info = http.get("/tokenizer_info").json()
    assert info["model_max_length"] == 2048
    assert "message['content']" in info["chat_template"]
    assert isinstance(info["eos_token"], str)


def test_without_a_name_only_one_model_is_found(server):
    assert httpx.post(f"{server.url}/v1/completions", json=TEXT).status_code == 200
    app = create_app({"a": server.model, "b": server.model})

    async def ask():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
            return await client.post("/v1/completions", json=TEXT)

    answer = asyncio.run(ask())
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "model")
    assert "'a', 'b'" in answer.json()["error"]["message"]


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.from_regex(r"[a-z_]{1,12}", fullmatch=True).map("zz{}".format),
    value=st.none() | st.integers() | st.text() | st.just({}),
    place=st.sampled_from(["body", "stream_options", "message", "tool", "structured_outputs", "response_format"]),
)
def test_an_unknown_field_is_never_a_silent_success(http, name, value, place):
    if value is None or value == {}:
        value = 1
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    body = {
        "body": CHAT | {name: value},
        "stream_options": CHAT | {"stream": True, "stream_options": {name: value}},
        "message": CHAT | {"messages": [CHAT["messages"][0] | {name: value}]},
        "tool": CHAT | {"tools": [tool | {name: value}]},
        "structured_outputs": CHAT | {"structured_outputs": {"regex": "a", name: value}},
        "response_format": CHAT | {"response_format": {"type": "json_object", name: value}},
    }[place]
    answer = http.post("/v1/chat/completions", json=body)
    if place == "tool" and answer.status_code == 200:  # the template shows all of a tool to the model
        plain = http.post("/v1/chat/completions", json=CHAT | {"tools": [tool]})
        assert answer.json()["usage"]["prompt_tokens"] > plain.json()["usage"]["prompt_tokens"]
        return
    assert answer.status_code == 400
    assert name in answer.text
