"""Every field of the clients' own types: null is as good as nothing, and a value that makes no sense is an error."""

import typing

import pytest

openai_chat = pytest.importorskip("openai.types.chat.completion_create_params")
openai_text = pytest.importorskip("openai.types.completion_create_params")
openai_responses = pytest.importorskip("openai.types.responses.response_create_params")
anthropic = pytest.importorskip("anthropic.types.message_create_params")
ollama = pytest.importorskip("ollama._types")

from runtime.server.anthropic import protocol as anthropic_fields  # noqa: E402
from runtime.server.ollama import protocol as ollama_fields  # noqa: E402
from runtime.server.openai import parse  # noqa: E402
from runtime.server.openai.responses import protocol as response_fields  # noqa: E402

TURNS = [{"role": "user", "content": "Hi"}]
ROUTES = {
    "/v1/chat/completions": (
        {"messages": TURNS, "max_tokens": 1},
        typing.get_type_hints(openai_chat.CompletionCreateParamsBase),
        parse.IGNORED,
    ),
    "/v1/completions": (
        {"prompt": "Hi", "max_tokens": 1},
        typing.get_type_hints(openai_text.CompletionCreateParamsBase),
        parse.IGNORED,
    ),
    "/v1/responses": (
        {"input": "Hi", "max_output_tokens": 1},
        typing.get_type_hints(openai_responses.ResponseCreateParamsBase),
        response_fields.IGNORED,
    ),
    "/v1/messages": (
        {"model": "tiny", "messages": TURNS, "max_tokens": 1},
        typing.get_type_hints(anthropic.MessageCreateParamsBase),
        anthropic_fields.IGNORED,
    ),
    "/api/chat": (
        {"model": "tiny", "messages": TURNS, "stream": False, "options": {"num_predict": 1}},
        ollama.ChatRequest.model_fields,
        ollama_fields.IGNORED,
    ),
    "/api/generate": (
        {"model": "tiny", "prompt": "Hi", "stream": False, "options": {"num_predict": 1}},
        ollama.GenerateRequest.model_fields,
        ollama_fields.IGNORED,
    ),
}
CASES = [(path, field) for path, (_, fields, _) in ROUTES.items() for field in sorted(fields)]


@pytest.mark.parametrize(("path", "field"), CASES)
def test_a_field_of_the_clients_types_is_read_or_refused_by_name(http, path, field):
    body, _, ignored = ROUTES[path]
    if field not in body:
        assert http.post(path, json=body | {field: None}).status_code == 200
    answer = http.post(path, json=body | {field: {"zzq": {"zzq": 1}}})
    if field in ignored or (field == "format" and path.startswith("/api")):  # a schema may hold notes of any name
        assert answer.status_code == 200, answer.text
    else:
        assert answer.status_code in (400, 404), f"{field} is accepted whatever it is"
        assert field in answer.text or "zzq" in answer.text


@pytest.mark.parametrize("option", sorted(ollama.Options.model_fields))
def test_an_option_of_ollama_is_known(http, option):
    body = ROUTES["/api/chat"][0]
    answer = http.post("/api/chat", json=body | {"options": {option: {"zzq": 1}}})
    assert answer.status_code == 200 if option in ollama_fields.HARDWARE else answer.status_code == 400
    assert "unknown option" not in answer.text
