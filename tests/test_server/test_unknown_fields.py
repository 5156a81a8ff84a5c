"""A field that nobody reads, at any place of any API's body, is an error that names it; or the prompt shows it."""

import copy

import pytest

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "weather", "description": "The weather", "parameters": SCHEMA}
TOOL = {"type": "function", "function": FUNCTION}
NAMED = {"type": "function", "function": {"name": "weather"}}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
PART = {"type": "text", "text": "Hello there"}
WANTED = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
TURNS = [
    {"role": "user", "content": [PART]},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "cold"},
]
SHORT = {"max_tokens": 2, "temperature": 0}
ITEMS = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello there"}]},
    {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Oslo"}'},
    {"type": "function_call_output", "call_id": "c1", "output": "cold"},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "It is cold"}]},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Thanks"}]},
]
BLOCKS = [
    {"role": "user", "content": [PART]},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Oslo"}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": [PART]}, PART]},
]
ANTHROPIC = {"model": "tiny", "messages": BLOCKS, "system": [PART]}
CLAUDE_TOOL = {"name": "weather", "description": "The weather", "input_schema": SCHEMA}
OLLAMA = {"model": "tiny", "stream": False, "options": {"num_predict": 2, "temperature": 0}}
OLLAMA_CALL = {"function": {"name": "weather", "arguments": {"city": "Oslo"}}}
BODIES = {
    "chat": ("/v1/chat/completions", SHORT | {"messages": TURNS, "tools": [TOOL], "tool_choice": "none"}),
    "forced": ("/v1/chat/completions", SHORT | {"messages": TURNS, "tools": [TOOL], "tool_choice": NAMED}),
    "allowed": (
        "/v1/chat/completions",
        SHORT
        | {"messages": TURNS, "tools": [TOOL]}
        | {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}}},
    ),
    "schema": ("/v1/chat/completions", SHORT | {"messages": TURNS[:1], "response_format": WANTED}),
    "structured": ("/v1/chat/completions", SHORT | {"messages": TURNS[:1], "structured_outputs": {"regex": "ab"}}),
    "streamed": (
        "/v1/chat/completions",
        SHORT | {"messages": TURNS[:1], "stream": True, "stream_options": {"include_usage": True}},
    ),
    "completion": ("/v1/completions", SHORT | {"prompt": "Hi", "structured_outputs": {"choice": ["a", "b"]}}),
    "response": (
        "/v1/responses",
        {"input": ITEMS, "max_output_tokens": 2, "temperature": 0, "store": False, "reasoning": {"summary": "auto"}}
        | {"text": {"format": {"type": "text"}}, "tools": [{"type": "function"} | FUNCTION]},
    ),
    "response with a schema": (
        "/v1/responses",
        {"input": "Hi", "max_output_tokens": 2, "temperature": 0, "store": False}
        | {"text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}}},
    ),
    "response with a tool": (
        "/v1/responses",
        {"input": "Hi", "max_output_tokens": 2, "temperature": 0, "store": False}
        | {"tools": [{"type": "function"} | FUNCTION], "tool_choice": {"type": "function", "name": "weather"}},
    ),
    "message": (
        "/v1/messages",
        ANTHROPIC | SHORT | {"tools": [CLAUDE_TOOL], "tool_choice": {"type": "auto"}, "thinking": {"type": "adaptive"}},
    ),
    "message with a schema": (
        "/v1/messages",
        ANTHROPIC | SHORT | {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
    ),
    "message with a tool": (
        "/v1/messages",
        ANTHROPIC | SHORT | {"tools": [CLAUDE_TOOL], "tool_choice": {"type": "tool", "name": "weather"}},
    ),
    "count": ("/v1/messages/count_tokens", ANTHROPIC | {"tools": [CLAUDE_TOOL]}),
    "ollama chat": (
        "/api/chat",
        OLLAMA
        | {"tools": [TOOL], "messages": [{"role": "user", "content": "Hi"}]}
        | {
            "messages": [
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": "", "tool_calls": [OLLAMA_CALL]},
                {"role": "tool", "tool_name": "weather", "content": "cold"},
            ]
        },
    ),
    "ollama generate": ("/api/generate", OLLAMA | {"prompt": "Hi", "system": "Be brief", "format": SCHEMA}),
    "ollama show": ("/api/show", {"model": "tiny"}),
    "tokenize": ("/tokenize", {"messages": TURNS, "tools": [TOOL]}),
    "detokenize": ("/detokenize", {"tokens": [5]}),
}
# What is data of the client's, for the model: any key is right there.
OPEN = {"parameters", "input_schema", "schema", "arguments", "input"}
NAME = "zzq_unread"


def places(value, path=()):
    """Paths of the objects whose keys the API defines."""
    if isinstance(value, dict):
        yield path
        for key, item in value.items():
            if not (key in OPEN and isinstance(item, dict)) and item is not SCHEMA:
                yield from places(item, (*path, key))
    elif isinstance(value, list):
        for key, item in enumerate(value):
            yield from places(item, (*path, key))


CASES = [(name, path) for name, (_, body) in BODIES.items() for path in places(body)]


def told(answer):
    """What a client sees of the prompt and of the answer."""
    body = answer.json() if answer.headers["content-type"].startswith("application/json") else answer.text
    if isinstance(body, str):
        return body.count("data:")
    counts = [body.get(key) for key in ("prompt_eval_count", "input_tokens", "count", "usage")]
    return [{k: v for k, v in one.items() if "prompt" in k or k == "input_tokens"} if isinstance(one, dict) else one
            for one in counts]  # fmt: skip


@pytest.fixture(scope="module")
def plain(server):
    """The answers to the bodies as they are."""
    import httpx

    answers = {name: httpx.post(server.url + path, json=body, timeout=30) for name, (path, body) in BODIES.items()}
    assert {name: answer.text for name, answer in answers.items() if answer.status_code != 200} == {}
    return answers


@pytest.mark.parametrize(("name", "path"), CASES, ids=lambda value: value if isinstance(value, str) else repr(value))
def test_an_unknown_field_is_an_error_or_seen_by_the_model(http, plain, name, path):
    route, body = BODIES[name][0], copy.deepcopy(BODIES[name][1])
    place = body
    for key in path:
        place = place[key]
    place[NAME] = 1
    answer = http.post(route, json=body)
    if answer.status_code == 200:
        assert told(answer) != told(plain[name]), f"{NAME} at {path} changes nothing"
    else:
        assert (answer.status_code, NAME in answer.text) == (400, True), answer.text
