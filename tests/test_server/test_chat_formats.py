"""Tools and thoughts over HTTP, on a tiny model with a real format's template; grammars make it call."""

import json

import pytest
from chat_cases import FOLDER, tool

from runtime import EngineOptions
from runtime.client import Model
from runtime.server.options import ServerOptions

ASKED = [{"role": "user", "content": "Pay."}]
PAY = tool("pay", {"sum": {"enum": [1, 2]}, "to": {"enum": ["Ann", "Bob"]}}, ["sum", "to"])
NOW = tool("now", {})
THINK = '<think>\nHm "ü"\n</think>\n\n'


@pytest.fixture(scope="module")
def bundle(make_checkpoint, make_bundle):
    checkpoint = make_checkpoint(max_position_embeddings=4096)
    config = checkpoint / "tokenizer_config.json"
    template = (FOLDER / "qwen3.jinja").read_text(encoding="utf-8")
    config.write_text(json.dumps(json.loads(config.read_text()) | {"chat_template": template}))
    return make_bundle(checkpoint)


@pytest.fixture(scope="module")
def server(bundle, start):
    return start(bundle)


def create(client, **fields):
    fields = {"max_tokens": 400, "temperature": 1.0, "seed": 2} | fields
    return client.chat.completions.create(model="tiny", messages=ASKED, **fields)


def said(text, **fields):
    """Fields that make the model write this text."""
    return {"extra_body": {"structured_outputs": {"grammar": f"start: {json.dumps(text)}"}}} | fields


def test_a_forced_call_fits_its_tool(client):
    answer = create(client, tools=[PAY, NOW], tool_choice="required")
    message = answer.choices[0].message
    assert (message.content, answer.choices[0].finish_reason) == (None, "tool_calls")
    for call in message.tool_calls:
        expected = {"pay": {"sum", "to"}, "now": set()}[call.function.name]
        assert set(json.loads(call.function.arguments)) == expected


@pytest.mark.parametrize("seed", range(3))
def test_a_named_tool_is_called_exactly_once(client, seed):
    choice = {"type": "function", "function": {"name": "pay"}}
    answer = create(client, tools=[PAY, NOW], tool_choice=choice, seed=seed)
    assert [call.function.name for call in answer.choices[0].message.tool_calls] == ["pay"]


def test_allowed_tools_are_the_only_ones(client):
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "now"}}]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    answer = create(client, tools=[PAY, NOW], tool_choice=choice, parallel_tool_calls=False)
    assert [call.function.name for call in answer.choices[0].message.tool_calls] == ["now"]


def test_streams_number_calls_as_they_come(client):
    chunks = list(create(client, tools=[PAY], tool_choice="required", stream=True, seed=5))
    deltas = [call for chunk in chunks for choice in chunk.choices for call in choice.delta.tool_calls or ()]
    assert [call.index for call in deltas] == list(range(len(deltas)))
    assert not any(choice.delta.content for chunk in chunks for choice in chunk.choices)
    assert [choice.finish_reason for chunk in chunks for choice in chunk.choices][-1] == "tool_calls"


def test_a_call_or_an_answer_in_the_schema(client, server):
    schema = {"type": "object", "properties": {"ok": {"enum": [True]}}, "required": ["ok"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "ok", "schema": schema}}
    call, answer = (
        create(client, tools=[NOW], response_format=wanted, logit_bias={server.model.tokenizer.id_of(first): 100})
        for first in "<{"
    )
    assert {called.function.name for called in call.choices[0].message.tool_calls} == {"now"}
    assert json.loads(answer.choices[0].message.content) == {"ok": True}


def test_a_call_that_is_cut_off_is_no_text(client):
    answer = create(client, tools=[PAY], tool_choice="required", max_tokens=20)
    assert (answer.choices[0].finish_reason, answer.choices[0].message.content) == ("length", "")
    assert answer.choices[0].message.tool_calls is None


@pytest.mark.parametrize(
    ("fields", "word"),
    [({"tools": [PAY], "tool_choice": {"type": "function", "function": {"name": "steal"}}}, "tool_choice"),
     ({"tools": [PAY], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"tools": []}}}, "tool_choice"),
     ({"tool_choice": "required"}, "tool_choice"), ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools"),
     ({"extra_body": {"thinking_budget": 100}}, "thinking_budget"), ({"reasoning_effort": "most"}, "reasoning_effort"),
     ({"extra_body": {"chat_template_kwargs": {"enable_thinkin": True}}}, "enable_thinkin")],
)  # fmt: skip
def test_what_the_model_cannot_do_is_a_400(client, fields, word):
    import openai

    with pytest.raises(openai.BadRequestError, match=word):
        create(client, **fields)


def test_switches_reach_the_template(http):
    def tokens(**fields):
        body = {"messages": ASKED, "max_tokens": 1} | fields
        return http.post("/v1/chat/completions", json=body).json()["usage"]["prompt_tokens"]

    thinking = tokens()
    for off in (
        {"enable_thinking": False},
        {"reasoning_effort": "none"},
        {"chat_template_kwargs": {"enable_thinking": False}},
    ):
        assert tokens(**off) > thinking  # an empty thought
    assert tokens(reasoning_effort="high") == thinking


def test_thoughts_are_told_apart(client):
    answer = create(client, **said(THINK + "Done."), tool_choice="none")
    message = answer.choices[0].message
    assert (message.content, message.reasoning_content, message.reasoning) == ("Done.", 'Hm "ü"', 'Hm "ü"')
    assert 5 < answer.usage.completion_tokens_details.reasoning_tokens < answer.usage.completion_tokens
    deltas = [
        c.choices[0].delta.model_dump() for c in create(client, **said(THINK + "Done."), stream=True) if c.choices
    ]
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == 'Hm "ü"'
    assert "".join(delta.get("content") or "" for delta in deltas) == "Done."


def test_thoughts_are_items_of_responses_and_go_back(client):
    call = {"type": "function", "name": "now", "parameters": {"type": "object", "properties": {}}}
    thought = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "Before."}],
    }
    made = {"type": "function_call", "call_id": "abc", "name": "now", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "abc", "output": "12:00"}
    items = [{"role": "user", "content": "Now?"}, thought, made, output]
    with_thought, without = (
        client.responses.create(
            model="tiny", input=given, tools=[call], max_output_tokens=1, store=False
        ).usage.input_tokens
        for given in (items, [items[0], *items[2:]])
    )
    assert with_thought > without
    answer = client.responses.create(
        model="tiny", input="Now?", tools=[call], tool_choice="required", max_output_tokens=300
    )
    assert {item.type for item in answer.output} == {"function_call"}


def test_reasoning_items_are_streamed(client):
    chat = client.responses.create(
        model="tiny", input="Hi", stream=True, max_output_tokens=200,
        extra_body={"chat_template_kwargs": {"enable_thinking": True}},
    )  # fmt: skip
    events = [event.type for event in chat]
    assert events[:2] == ["response.created", "response.in_progress"]
    assert events[-1] in ("response.completed", "response.incomplete")


def test_thoughts_stay_in_the_text_where_that_is_wanted(bundle, start):
    kept = start(bundle, reasoning_format="none")
    with kept.client() as client:
        message = create(client, **said(THINK + "Done.")).choices[0].message
    assert message.content == THINK + "Done."


def test_tools_without_a_template_for_them(tiny_bundle, make_checkpoint, make_bundle, start):
    import openai

    plain = make_bundle(make_checkpoint(max_position_embeddings=2048))
    with start(plain).client() as client, pytest.raises(openai.BadRequestError, match="has no tools"):
        create(client, tools=[NOW])
    with start(plain, tool_fallback=True).client() as client:
        answer = create(client, tools=[NOW], tool_choice="required", parallel_tool_calls=False)
        message = answer.choices[0].message
        assert [call.function.name for call in message.tool_calls] == ["now"]
        history = [
            *ASKED,
            message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": "x", "content": "12:00"},
        ]
        assert client.chat.completions.create(model="tiny", messages=history, tools=[NOW], max_tokens=1).usage


def test_another_template_takes_the_place_of_the_bundle_s(bundle, tmp_path):
    path = tmp_path / "other.jinja"
    path.write_text((FOLDER / "devstral.jinja").read_text(encoding="utf-8"))
    model = Model(bundle, "cpu", EngineOptions(max_concurrency=1, threads=1), chat_template=path)
    assert model.chat_template.format.calls.open_mark == "[TOOL_CALLS]"
    model.close()
    assert ServerOptions(reasoning_format="none").reasoning_format == "none"
