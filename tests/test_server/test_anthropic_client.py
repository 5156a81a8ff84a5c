"""Anthropic's own client against the server: messages, streams, tools, counting, and refusals."""

import httpx
import pytest

anthropic = pytest.importorskip("anthropic")

MESSAGES = [{"role": "user", "content": "Hi"}]
GREEDY = {"extra_body": {"temperature": 0}}
WEATHER = {
    "name": "weather",
    "description": "The weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"enum": ["Oslo", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


@pytest.fixture(scope="module")
def server(start, chat_bundle):
    return start(chat_bundle)


@pytest.fixture
def client(server):
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def openai_text(server):
    def answer(messages, **options):
        with server.client() as client:
            choice = client.chat.completions.create(model="tiny", messages=messages, **options).choices[0]
        return choice.message.content

    return answer


def test_a_message_is_the_chat_s_answer(client, openai_text):
    message = client.messages.create(model="tiny", max_tokens=8, messages=MESSAGES, system="Be brief", **GREEDY)
    expected = openai_text([{"role": "system", "content": "Be brief"}, *MESSAGES], max_tokens=8, temperature=0)
    assert [(block.type, block.text) for block in message.content] == [("text", expected)]
    assert message.stop_reason == "max_tokens"
    assert message.usage.output_tokens == 8


def test_a_stream_is_the_same_message_in_events(client):
    asked = {"model": "tiny", "max_tokens": 8, "messages": MESSAGES, **GREEDY}
    whole = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert final.content[0].text == whole.content[0].text
    assert (final.stop_reason, final.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"


@pytest.mark.parametrize("stream", [False, True])
def test_a_forced_tool_is_used_and_its_result_understood(client, stream):
    choice = {"type": "tool", "name": "weather"}
    asked = {"model": "tiny", "max_tokens": 100, "messages": MESSAGES, "tools": [WEATHER], "tool_choice": choice}
    if stream:
        with client.messages.stream(**asked) as events:
            message = events.get_final_message()
    else:
        message = client.messages.create(**asked)
    calls = [block for block in message.content if block.type == "tool_use"]
    assert message.stop_reason == "tool_use"
    assert [call.name for call in calls] == ["weather"]
    assert calls[0].input["city"] in ("Oslo", "Rome")
    result = {"type": "tool_result", "tool_use_id": calls[0].id, "content": [{"type": "text", "text": "sunny"}]}
    turns = [{"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
    after = client.messages.create(model="tiny", max_tokens=4, messages=MESSAGES + turns, tools=[WEATHER])
    assert after.usage.input_tokens + after.usage.cache_read_input_tokens > message.usage.input_tokens


def test_tokens_are_counted_without_an_answer(client):
    asked = {"model": "tiny", "messages": MESSAGES, "system": "Be brief", "tools": [WEATHER]}
    counted = client.messages.count_tokens(**asked).input_tokens
    usage = client.messages.create(**asked, max_tokens=1).usage
    assert counted == usage.input_tokens + usage.cache_read_input_tokens


def test_a_stop_sequence_ends_the_message(client):
    text = client.messages.create(model="tiny", max_tokens=16, messages=MESSAGES, **GREEDY).content[0].text
    stopped = client.messages.create(
        model="tiny", max_tokens=16, messages=MESSAGES, stop_sequences=[text[3:6]], **GREEDY
    )
    assert stopped.content[0].text == text[: text.index(text[3:6])]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mood": "good"}, "mood"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "Hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": "Hi", "name": "x"}]}, "messages[0].name"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "b": 1}]}]}, "content[0].b"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [WEATHER | {"speed": 1}]}, "tools[0].speed"),
        ({"tools": [WEATHER], "tool_choice": {"type": "some"}}, "tool_choice.type"),
        ({"thinking": {"type": "deep"}}, "thinking.type"),
        ({"output_config": {"effort": "extreme"}}, "output_config.effort"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"model": "other"}, "other"),
    ],
)
def test_what_is_not_understood_is_an_error_of_its_form(server, changes, words):
    body = {"model": "tiny", "max_tokens": 4, "messages": MESSAGES} | changes
    answer = httpx.post(f"{server.url}/v1/messages", json=body)
    assert answer.status_code in (400, 404)
    assert answer.json()["type"] == "error"
    assert words in answer.json()["error"]["message"]


def test_its_client_raises_its_own_errors(client):
    with pytest.raises(anthropic.BadRequestError, match="temperature"):
        client.messages.create(model="tiny", max_tokens=4, messages=MESSAGES, extra_body={"temperature": -1})
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="other", max_tokens=4, messages=MESSAGES)


def test_a_key_may_come_in_its_own_header(start, chat_bundle):
    server = start(chat_bundle, api_keys=("secret-key",))
    body = {"model": "tiny", "max_tokens": 2, "messages": MESSAGES}
    statuses = [
        httpx.post(f"{server.url}/v1/messages", json=body, headers={"x-api-key": key}).status_code
        for key in ("secret-key", "other-key")
    ]
    assert statuses == [200, 401]
