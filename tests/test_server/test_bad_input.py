"""Whatever is sent, the answer is a 4xx in OpenAI's shape, soon, and the server goes on."""

import json
import socket
import time

import httpx
import pytest

from runtime.server.openai.responses.protocol import LOGPROBS

CHAT = "/v1/chat/completions"
HEADERS = {"content-type": "application/json"}
MESSAGES = [{"role": "user", "content": "Hi"}]


def nested(depth):
    return "[" * depth + "]" * depth


BODIES = {
    "nothing": "",
    "not JSON": "{",
    "a list": "[]",
    "a word": '"hi"',
    "deep JSON": '{"messages": ' + nested(100_000) + "}",
    "deep content": '{"messages": [{"role": "user", "content": ' + nested(60) + "}]}",
    "half a surrogate pair": '{"messages": [{"role": "user", "content": "\\ud800"}]}',
    "NaN": '{"messages": [{"role": "user", "content": "Hi"}], "temperature": NaN}',
    "infinity": '{"messages": [{"role": "user", "content": "Hi"}], "temperature": 1e999}',
    "a huge number": '{"messages": [{"role": "user", "content": "Hi"}], "seed": 1' + "0" * 5000 + "}",
    "a key twice": '{"model": "a", "model": "b"}',
    "no messages": "{}",
    "empty messages": '{"messages": []}',
    "wrong types": '{"messages": 5, "n": "x"}',
    "a boolean for a number": '{"messages": [{"role": "user", "content": "Hi"}], "n": true}',
    "a control character": '{"model": "a\x00b"}',
    "a very long name": json.dumps({"x" * 100_000: 1}),
}


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("path", [CHAT, "/v1/responses", "/v1/completions", "/tokenize", "/detokenize"])
def test_a_bad_body_is_a_400_in_openais_shape(http, path, name):
    answer = http.post(path, content=BODIES[name], headers=HEADERS)
    assert answer.status_code == 400
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert len(answer.text) < 2000


def test_bytes_that_are_not_utf8_are_refused(http):
    answer = http.post(CHAT, content=b'{"model": "\xff"}', headers=HEADERS)
    assert (answer.status_code, "UTF-8" in answer.text) == (400, True)


VALUES = [
    {"n": 0}, {"n": 129}, {"top_p": 0}, {"top_p": 1.5}, {"temperature": -0.1}, {"max_tokens": -1}, {"stop": ""},
    {"stop": [1]}, {"logit_bias": {"x": 1}}, {"logit_bias": {"5": 101}}, {"logit_bias": {"320": 1}},
    {"stop_token_ids": [-1]}, {"stop_token_ids": [320]}, {"top_logprobs": 2}, {"logprobs": True, "top_logprobs": 21},
    {"min_tokens": 5, "max_tokens": 1}, {"stream_options": {"x": 1}}, {"functions": []}, {"modalities": ["audio"]},
    {"response_format": {"type": "x"}}, {"response_format": {"type": "json_schema"}},
    {"structured_outputs": {"regex": "("}}, {"structured_outputs": {}}, {"structured_outputs": {"grammar": "%%"}},
    {"tools": [{}]}, {"tools": [{"function": {"name": "a b"}}]}, {"tool_choice": "required"},
    {"chat_template_kwargs": {"messages": []}}, {"timeout": -1},
]  # fmt: skip


@pytest.mark.parametrize("change", VALUES, ids=map(str, VALUES))
def test_a_value_out_of_range_is_refused_by_name(http, change):
    answer = http.post(CHAT, json={"messages": MESSAGES} | change)
    assert answer.status_code == 400
    assert next(iter(change)).split("_")[0] in answer.json()["error"]["message"].lower()


RESPONSES = [
    {"input": 5}, {"input": [5]}, {"input": [{}]}, {"input": [{"type": []}]}, {"input": [{"type": {}, "role": "user"}]},
    {"input": [{"role": [], "content": "Hi"}]}, {"input": [{"role": "user", "content": 5}]},
    {"input": [{"role": "user", "content": [{"type": [], "text": "Hi"}]}]},
    {"input": [{"role": "user", "content": [5]}]},
    {"input": [{"role": "user", "content": [{"type": "input_text", "text": 5}]}]},
    {"input": [{"role": "user", "content": "Hi", "x": 1}]},
    {"input": [{"type": "function_call", "call_id": [], "name": "f", "arguments": "{}"}]},
    {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": {}}]},
    {"input": [{"type": "function_call_output", "call_id": {}, "output": ""}]},
    {"tools": [{}]}, {"tools": [{"type": []}]}, {"tools": [{"type": "function"}]},
    {"tools": [{"type": "function", "name": "f", "parameters": []}]}, {"tool_choice": []},
    {"tool_choice": {"type": []}},
    {"text": []}, {"text": {"format": []}}, {"text": {"format": {"type": []}}},
    {"text": {"format": {"type": "json_schema"}}}, {"text": {"format": {"type": "json_schema", "schema": []}}},
    {"include": [5]}, {"metadata": {"a": 5}}, {"previous_response_id": 5}, {"store": "yes"}, {"instructions": []},
    {"max_output_tokens": 1.5}, {"stream_options": {"x": 1}}, {"top_logprobs": -1, "include": [LOGPROBS]},
]  # fmt: skip


@pytest.mark.parametrize("change", RESPONSES, ids=map(str, RESPONSES))
def test_a_wrong_value_of_a_response_is_refused_by_name(http, change):
    answer = http.post("/v1/responses", json={"input": "Hi"} | change)
    assert answer.status_code == 400
    assert next(iter(change)) in answer.json()["error"]["message"]


def test_an_overlong_prompt_is_refused_with_both_lengths(http):
    answer = http.post("/v1/completions", json={"prompt": [5] * 2048})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
    assert "prompt has 2048 tokens" in error["message"]
    assert "holds 2048" in error["message"]
    assert http.post("/v1/completions", json={"prompt": [5] * 2047, "max_tokens": 1}).status_code == 200


def test_a_body_of_ten_megabytes_is_refused_without_being_kept(http):
    answer = http.post(CHAT, content=b'{"x": "' + b"y" * 10_000_000 + b'"}', headers=HEADERS)
    assert answer.status_code == 413
    assert "4194304" in answer.json()["error"]["message"]


def test_a_body_that_does_not_come_is_given_up(start, chat_bundle):
    slow = start(chat_bundle, body_seconds=0.2)
    host, port = slow.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())
        begun = time.monotonic()
        assert b"408" in connection.recv(4096)
    assert time.monotonic() - begun < 5
    assert slow.app.state.service.admission.inside == 0


def test_a_schema_that_explodes_is_refused_or_answered_soon(http):
    schema = {"type": "object", "properties": {f"p{i}": {"type": "string", "maxLength": 10**9} for i in range(200)}}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    begun = time.monotonic()
    answer = http.post(CHAT, json={"messages": MESSAGES, "response_format": wanted, "max_tokens": 2})
    assert answer.status_code in (200, 400)
    assert time.monotonic() - begun < 20


def test_a_template_bomb_in_a_message_is_text(http):
    bomb = "{% for i in range(10**9) %}{% for j in range(10**9) %}x{% endfor %}{% endfor %}{{ 9**9**9 }}"
    answer = http.post(CHAT, json={"messages": [{"role": "user", "content": bomb}], "max_tokens": 1})
    assert answer.status_code == 200


def test_a_template_that_is_a_bomb_is_a_400(start, make_checkpoint, make_bundle):
    checkpoint = make_checkpoint(max_position_embeddings=512)
    config = checkpoint / "tokenizer_config.json"
    bomb = "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}"
    config.write_text(json.dumps({"chat_template": bomb}))
    bombed = start(make_bundle(checkpoint))
    answer = httpx.post(bombed.url + CHAT, json={"messages": MESSAGES}, timeout=60)
    assert answer.status_code == 400
    assert httpx.get(f"{bombed.url}/health").status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", CHAT, 405), ("POST", "/health", 405), ("GET", "/v2", 404)]
)
def test_wrong_paths_and_methods_are_errors_in_the_same_shape(http, method, path, status):
    answer = http.request(method, path)
    assert answer.status_code == status
    assert answer.json()["error"]["type"] == "invalid_request_error"
