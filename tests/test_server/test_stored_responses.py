"""Responses that are kept: continued, read again, deleted, and dropped when there are too many."""

import httpx
import openai
import pytest

from runtime.server.openai.errors import ApiError
from runtime.server.openai.responses.store import ResponseStore, StoredResponse


def ask(client, given, **options):
    return client.responses.create(**({"model": "tiny", "input": given, "max_output_tokens": 8} | options))


def stored(number, size):
    return StoredResponse({"id": f"resp_{number}"}, (), (), size)


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_continues_the_one_before(client, stream):
    first = ask(client, "Hi", instructions="Be short.", stream=stream)
    first = [*first][-1].response if stream else first
    second = ask(client, "And?", previous_response_id=first.id)
    said = {"role": "assistant", "content": first.output_text}
    whole = ask(client, [{"role": "user", "content": "Hi"}, said, {"role": "user", "content": "And?"}])
    assert second.output_text == whole.output_text
    assert (second.previous_response_id, second.usage.input_tokens) == (first.id, whole.usage.input_tokens)


def test_a_chain_remembers_its_beginning_even_if_that_is_deleted(client):
    first = ask(client, "Hi")
    second = ask(client, "And?", previous_response_id=first.id)
    client.responses.delete(first.id)
    third = ask(client, "So?", previous_response_id=second.id)
    assert third.usage.input_tokens > second.usage.input_tokens + second.usage.output_tokens
    with pytest.raises(openai.NotFoundError, match="There is no response"):
        ask(client, "So?", previous_response_id=first.id)


def test_the_output_of_a_call_needs_only_the_response_that_called(client):
    tool = {"type": "function", "name": "paint", "parameters": {"type": "object", "additionalProperties": False}}
    first = ask(client, "Hi", tools=[tool], tool_choice="required", parallel_tool_calls=False, max_output_tokens=99)
    output = {"type": "function_call_output", "call_id": first.output[0].call_id, "output": "done"}
    assert ask(client, [output], previous_response_id=first.id).usage.output_tokens == 8
    with pytest.raises(openai.BadRequestError, match="no function call"):
        ask(client, [output | {"call_id": "other"}], previous_response_id=first.id)


def test_a_stored_response_is_read_again_and_deleted(client):
    response = ask(client, "Hi", metadata={"a": "b"})
    assert client.responses.retrieve(response.id).to_dict() == response.to_dict()
    client.responses.delete(response.id)
    for again in (client.responses.retrieve, client.responses.delete, client.responses.input_items.list):
        with pytest.raises(openai.NotFoundError, match="has been deleted"):
            again(response.id)


def test_what_was_asked_can_be_listed(client):
    items = [{"role": "user", "content": f"{number}"} for number in range(3)]
    response = ask(client, items)
    listed = client.responses.input_items.list(response.id, order="asc", limit=2)
    assert [item.content for item in listed.data] == ["0", "1"]
    assert [item.content for item in listed] == ["0", "1", "2"]
    assert client.responses.input_items.list(response.id).data[0].content == "2"
    (item,) = client.responses.input_items.list(ask(client, "Hi").id).data
    assert (item.role, item.content[0].text) == ("user", "Hi")


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "order=up", "after=nothing", "what=1"])
def test_a_wrong_question_is_refused_by_name(client, http, query):
    response = ask(client, "Hi")
    answer = http.get(f"/v1/responses/{response.id}/input_items?{query}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, query.partition("=")[0])
    assert http.get(f"/v1/responses/{response.id}?stream=true").status_code == 400


def test_what_is_not_to_be_stored_is_not(client):
    response = ask(client, "Hi", store=False)
    assert response.store is False
    with pytest.raises(openai.NotFoundError, match="was not stored"):
        client.responses.retrieve(response.id)


def test_a_server_that_keeps_nothing_says_so(start, chat_bundle):
    forgetful = start(chat_bundle, response_store=0)
    answer = httpx.post(f"{forgetful.url}/v1/responses", json={"input": "Hi", "max_output_tokens": 2}).json()
    assert answer["store"] is False
    assert httpx.get(f"{forgetful.url}/v1/responses/{answer['id']}").status_code == 404


def test_another_server_knows_nothing_of_it(client, start, chat_bundle):
    """As after a restart."""
    response = ask(client, "Hi")
    with start(chat_bundle).client() as other, pytest.raises(openai.NotFoundError) as caught:
        ask(other, "And?", previous_response_id=response.id)
    assert caught.value.code == "previous_response_not_found"
    assert "started again" in str(caught.value)


def test_the_oldest_make_room():
    store = ResponseStore(100)
    for number in range(5):
        store.put(stored(number, 40))
    assert (len(store), store.bytes) == (2, 80)
    assert store.get("resp_4").bytes == 40
    with pytest.raises(ApiError, match="made room"):
        store.get("resp_0")


def test_one_that_is_too_large_drops_no_others():
    store = ResponseStore(100)
    store.put(stored(0, 60))
    store.put(stored(1, 101))
    assert (len(store), store.bytes) == (1, 60)


def test_deleting_gives_the_room_back():
    store = ResponseStore(100)
    store.put(stored(0, 60))
    store.delete("resp_0")
    assert (len(store), store.bytes) == (0, 0)
