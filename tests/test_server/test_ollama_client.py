"""Ollama's own client against the server: chats, generations, tools, and what it asks about models."""

import httpx
import pytest

ollama = pytest.importorskip("ollama")

MESSAGES = [{"role": "user", "content": "Hi"}]
GREEDY = {"temperature": 0, "num_predict": 8}


@pytest.fixture(scope="module")
def server(start, chat_bundle):
    return start(chat_bundle)


@pytest.fixture
def client(server):
    with ollama.Client(host=server.url) as client:
        yield client


def test_a_chat_is_openai_s_chat(client, server):
    answer = client.chat("tiny:latest", MESSAGES, options=GREEDY)
    with server.client() as other:
        expected = other.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=8, temperature=0)
    assert answer.message.content == expected.choices[0].message.content
    assert (answer.done, answer.done_reason, answer.eval_count) == (True, "length", 8)


def test_a_stream_is_the_same_chat_line_by_line(client):
    whole = client.chat("tiny", MESSAGES, options=GREEDY)
    parts = list(client.chat("tiny", MESSAGES, options=GREEDY, stream=True))
    assert "".join(part.message.content for part in parts) == whole.message.content
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]


def test_a_generation_goes_through_the_template_unless_it_is_raw(client, server):
    chat = client.chat("tiny", [{"role": "system", "content": "Be brief"}, *MESSAGES], options=GREEDY)
    assert client.generate("tiny", "Hi", system="Be brief", options=GREEDY).response == chat.message.content
    raw = client.generate("tiny", "Hi", raw=True, options=GREEDY)
    pieces = client.generate("tiny", "Hi", raw=True, options=GREEDY, stream=True)
    assert "".join(piece.response for piece in pieces) == raw.response != chat.message.content


def test_a_schema_is_kept(client):
    schema = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}
    answer = client.chat("tiny", MESSAGES, format=schema, options={"num_predict": 60})
    assert answer.message.content.replace(" ", "").replace("\n", "") in ('{"a":"x"}', '{"a":"y"}')


def test_a_tool_s_call_and_result_find_each_other(client):
    def weather(city: str) -> str:
        """The weather.

        Args:
            city: where
        """
        return city

    call = {"function": {"name": "weather", "arguments": {"city": "Oslo"}}}
    turns = [
        *MESSAGES,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_name": "weather", "content": "sunny"},
    ]
    assert client.chat("tiny", turns, tools=[weather], options=GREEDY).done
    with pytest.raises(ollama.ResponseError, match="waits for one"):
        client.chat("tiny", [*turns, {"role": "tool", "tool_name": "weather", "content": "again"}])


def test_models_are_listed_and_shown(client):
    assert [model.model for model in client.list().models] == ["tiny"]
    assert [model.model for model in client.ps().models] == ["tiny"]
    shown = client.show("tiny")
    assert shown.details.family == "llama"
    assert shown.modelinfo["llama.context_length"] == 2048
    assert "tools" in shown.capabilities


@pytest.mark.parametrize(
    ("path", "changes", "words"),
    [
        ("chat", {"mood": "good"}, "mood"),
        ("chat", {"options": {"heat": 1}}, "options.heat"),
        ("chat", {"options": {"mirostat": 2}}, "options.mirostat"),
        ("chat", {"options": {"num_ctx": 10**6}}, "2048 tokens"),
        ("chat", {"options": {"temperature": "hot"}}, "temperature"),
        ("chat", {"messages": [{"role": "user", "content": "Hi", "images": ["aGk="]}]}, "images"),
        ("chat", {"format": "yaml"}, "format"),
        ("generate", {"prompt": "Hi", "context": [1]}, "context"),
        ("generate", {"prompt": "Hi", "suffix": "x"}, "suffix"),
        ("generate", {"prompt": "Hi", "raw": True, "system": "x"}, "raw"),
        ("show", {}, "messages"),
    ],
)
def test_what_is_not_understood_is_an_error_of_its_form(server, path, changes, words):
    body = {"model": "tiny"} | ({} if path == "generate" else {"messages": MESSAGES}) | changes
    answer = httpx.post(f"{server.url}/api/{path}", json=body)
    assert answer.status_code == 400
    assert words in answer.json()["error"]


def test_one_model_needs_no_name(server):
    for path, body in (("chat", {"messages": MESSAGES}), ("generate", {"prompt": "Hi"}), ("show", {})):
        answer = httpx.post(f"{server.url}/api/{path}", json=body | ({} if path == "show" else {"stream": False}))
        assert answer.status_code == 200, answer.text
        assert answer.json().get("model", "tiny") == "tiny"


@pytest.mark.parametrize(
    "options", [{"num_gpu": 1}, {"top_k": -1}, {"mirostat": 0}, {"num_ctx": 512}, {"repeat_last_n": -1}]
)
def test_options_that_change_no_answer_are_taken(client, options):
    expected = client.chat("tiny", MESSAGES, options=GREEDY).message.content
    assert client.chat("tiny", MESSAGES, options=GREEDY | options).message.content == expected
