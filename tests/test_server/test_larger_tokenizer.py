"""A tokenizer of 281 tokens for a model of 280: what it cannot read is a 400, what it cannot write is not tried."""

import json

import httpx
import pytest

NEW = "<|new|>"
TEXT = f"Hi {NEW}there"
HI = {"role": "user", "content": "Hi"}
TURN = [{"role": "user", "content": TEXT}]
BODIES = {
    "text": ("/v1/completions", {"prompt": TEXT}),
    "ids": ("/v1/completions", {"prompt": [5, 280]}),
    "texts": ("/v1/completions", {"prompt": ["Hi", TEXT]}),
    "lists of ids": ("/v1/completions", {"prompt": [[5], [280]]}),
    "chat": ("/v1/chat/completions", {"messages": TURN}),
    "parts": ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "text", "text": TEXT}]}]}),
    "a streamed chat": ("/v1/chat/completions", {"messages": TURN, "stream": True}),
    "response": ("/v1/responses", {"input": TEXT}),
    "instructions": ("/v1/responses", {"input": "Hi", "instructions": TEXT}),
    "messages": ("/v1/messages", {"messages": TURN, "max_tokens": 5, "model": "tiny"}),
    "system": ("/v1/messages", {"messages": [HI], "system": TEXT, "max_tokens": 5, "model": "tiny"}),
    "ollama chat": ("/api/chat", {"model": "tiny", "messages": TURN, "stream": False}),
    "ollama stream": ("/api/chat", {"model": "tiny", "messages": TURN}),
    "ollama generate": ("/api/generate", {"model": "tiny", "prompt": TEXT, "stream": False}),
    "ollama raw": ("/api/generate", {"model": "tiny", "prompt": TEXT, "raw": True, "stream": False}),
}  # fmt: skip


@pytest.fixture(scope="module")
def larger(start, make_checkpoint, make_bundle):
    checkpoint = make_checkpoint(vocab_size=280, max_position_embeddings=512)
    mark = {
        "content": NEW,
        "special": True,
        "normalized": False,
        "lstrip": False,
        "rstrip": False,
        "single_word": False,
    }
    path = checkpoint / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"added_tokens_decoder": {"280": mark}}))
    return start(make_bundle(checkpoint))


def post(server, path, body):
    return httpx.post(server.url + path, json=body, timeout=30)


def test_the_tokenizer_is_larger(larger):
    assert post(larger, "/tokenize", {"prompt": NEW, "add_special_tokens": False}).json()["tokens"] == [280]
    assert larger.model.engine.core.executor.vocab_size == 280


@pytest.mark.parametrize("name", BODIES)
def test_a_prompt_with_a_token_that_has_no_row_is_a_400(larger, name):
    path, body = BODIES[name]
    answer = post(larger, path, body)
    assert answer.status_code == 400, answer.text
    assert "Token id 280 is outside the vocabulary" in answer.text


@pytest.mark.parametrize("field", [{"stop_token_ids": [280]}, {"logit_bias": {"280": 5}}], ids=str)
def test_so_is_a_field_that_names_it(larger, field):
    answer = post(larger, "/v1/completions", {"prompt": "Hi"} | field)
    assert (answer.status_code, "280" in answer.text) == (400, True)


GRAMMARS = {
    "choice": {"choice": ["yes", "no"]},
    "regex": {"regex": "[a-z<|>]{4}"},
    "lark": {"grammar": 'start: "a" /[^b]{3}/'},
    "json": {"json": {"type": "object", "properties": {"a": {"type": "string", "maxLength": 5}}, "required": ["a"]}},
}


@pytest.mark.parametrize("name", GRAMMARS)
def test_grammars_leave_it_out(larger, name):
    body = {"prompt": "Hi", "structured_outputs": GRAMMARS[name], "max_tokens": 40, "temperature": 1, "seed": 1}
    answer = post(larger, "/v1/completions", body | {"logprobs": 5})
    choice = answer.json()["choices"][0]
    assert (answer.status_code, choice["finish_reason"]) == (200, "stop")
    assert all(NEW not in token for tops in choice["logprobs"]["top_logprobs"] for token in tops)


def test_a_grammar_of_that_token_alone_is_spelled_with_others(larger):
    answer = post(
        larger, "/v1/completions", {"prompt": "Hi", "structured_outputs": {"choice": [NEW]}, "max_tokens": 30}
    )
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["text"] == NEW
