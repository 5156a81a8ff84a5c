"""Tools and thoughts in Python: functions become schemas, and answers hold calls that fit them."""

import asyncio
import dataclasses
import enum
import json
from typing import Annotated, Literal, TypedDict

import pytest
from chat_cases import FOLDER

import runtime
from runtime.chat.fallback import messages_with_tools
from runtime.chat.function_schema import function_schema
from runtime.chat.thinking import thinking_variables
from runtime.errors import OptionError, RequestError

ASKED = [{"role": "user", "content": "How is the weather?"}]
PARAMS = runtime.SamplingParams(max_tokens=400, temperature=1.0, seed=3)


class Unit(enum.Enum):
    C = "celsius"
    F = "fahrenheit"


class Place(TypedDict):
    city: Literal["Rome", "Oslo"]


@dataclasses.dataclass
class Window:
    first: Literal[1, 2]
    last: Literal[3, 4] = 3


def weather(place: Place, unit: Unit, days: Literal[1, 2] = 1) -> str:
    """The weather of a place.

    Args:
        place: where, in a city
            that we know.
        days: how many.
    """
    return f"{place['city']}, {unit}, {days}"


def pay(window: Window, fast: Annotated[bool, "At once?"], note: Literal["a", "b"] | None = None) -> str:
    """Pay."""
    return f"{window}{fast}{note}"


@pytest.fixture(scope="module")
def bundle(make_checkpoint, make_bundle):
    checkpoint = make_checkpoint(max_position_embeddings=4096)
    config = checkpoint / "tokenizer_config.json"
    template = (FOLDER / "qwen3.jinja").read_text(encoding="utf-8")
    config.write_text(json.dumps(json.loads(config.read_text()) | {"chat_template": template}))
    return make_bundle(checkpoint)


@pytest.fixture(scope="module")
def llm(bundle):
    with runtime.LLM(bundle) as llm:
        yield llm


def test_a_function_says_what_it_takes():
    function = function_schema(weather)["function"]
    assert (function["name"], function["description"]) == ("weather", "The weather of a place.")
    parameters = function["parameters"]
    assert parameters["required"] == ["place", "unit"]
    assert parameters["properties"]["unit"] == {"enum": ["celsius", "fahrenheit"]}
    assert parameters["properties"]["place"]["properties"] == {"city": {"enum": ["Rome", "Oslo"]}}
    assert parameters["properties"]["place"]["description"] == "where, in a city that we know."


def test_hints_of_all_kinds():
    def kinds(a: list[int], b: dict[str, float], c: str | None = None, d: tuple[bool, ...] = ()) -> None:
        pass

    properties = function_schema(kinds)["function"]["parameters"]["properties"]
    assert properties["a"] == {"type": "array", "items": {"type": "integer"}}
    assert properties["b"] == {"type": "object", "additionalProperties": {"type": "number"}}
    assert properties["c"] == {"anyOf": [{"type": "string"}, {"type": "null"}]}
    assert function_schema(pay)["function"]["parameters"]["properties"]["fast"]["description"] == "At once?"


@pytest.mark.parametrize("function", [lambda x: x, lambda *x: x, print])
def test_a_function_without_hints_is_no_tool(function):
    with pytest.raises(OptionError, match=r"hint|any number"):
        function_schema(function)


def test_a_forced_call_fits_the_function(llm):
    answer = llm.chat(ASKED, PARAMS, tools=[weather, pay], tool_choice="required")
    assert (answer.text, answer.finish_reason) == ("", "tool_calls")
    for call in answer.tool_calls:
        arguments = json.loads(call.arguments)
        assert {"weather": weather, "pay": pay}[call.name](**arguments)


def test_a_named_tool_is_called_once(llm):
    answers = [llm.chat(ASKED, PARAMS, seed=seed, tools=[weather, pay], tool_choice="pay") for seed in range(3)]
    assert [[call.name for call in answer.tool_calls] for answer in answers] == [["pay"]] * 3


def test_a_conversation_goes_on_with_the_results(llm):
    answer = llm.chat(ASKED, PARAMS, tools=[weather], tool_choice="weather")
    (call,) = answer.tool_calls
    result = {"role": "tool", "tool_call_id": call.id, "content": weather(**json.loads(call.arguments))}
    prompt = llm.model.chat_request([*ASKED, answer.message, result], tools=[weather]).ids
    shown = llm.model.tokenizer.decode(prompt, skip_special=False)
    assert '<tool_call>\n{"name": "weather", "arguments": {"place": {"city": ' in shown
    assert llm.chat([*ASKED, answer.message, result], max_tokens=1, tools=[weather]).finish_reason == "length"


def test_streams_tell_of_calls_too(llm, bundle):
    deltas = list(llm.stream_chat(ASKED, PARAMS, tools=[weather], tool_choice="weather"))
    assert [call.name for delta in deltas for call in delta.tool_calls] == ["weather"]
    assert ("".join(delta.text for delta in deltas), deltas[-1].finish_reason) == ("", "tool_calls")

    async def ask():
        async with runtime.AsyncLLM(bundle) as other:
            return await other.chat(ASKED, PARAMS, tools=[weather], tool_choice="weather")

    assert [call.name for call in asyncio.run(ask()).tool_calls] == ["weather"]


def test_thoughts_are_told_apart_or_left(llm):
    grammar = runtime.StructuredOutput(lark='start: "<think>\\nHm.\\n</think>\\n\\nYes."')
    request = llm.model.chat_request(ASKED)
    delta = runtime.OutputDelta(0, "<think>\nHm.\n</think>\n\nYes.", (5, 6), finish_reason="stop")
    read = request.reader()(delta)
    assert (read.text, read.reasoning) == ("Yes.", "Hm.")
    kept = llm.model.chat_request(ASKED, reasoning_format="none").reader()(delta)
    assert (kept.text, kept.reasoning, grammar.kind) == (delta.text, "", "lark")


@pytest.mark.parametrize(
    "wrong",
    [{"tools": [5]}, {"tools": "weather"}, {"tool_choice": "required"}, {"tools": [weather], "tool_choice": "pay"},
     {"tools": [weather, weather]}, {"reasoning_format": "some"}, {"tools": [{"name": 5}]}],
)  # fmt: skip
def test_what_is_wrong_is_refused(llm, wrong):
    with pytest.raises((OptionError, RequestError), match=r"tool|reasoning_format"):
        llm.chat(ASKED, **wrong)


def test_efforts_reach_the_template_or_are_refused(llm):
    chat = llm.model.chat_template.format
    assert thinking_variables(chat, effort="none") == {"enable_thinking": False}
    assert thinking_variables(chat, effort="high", enable=True) == {"enable_thinking": True}
    assert thinking_variables(chat, budget=0) == {"enable_thinking": False}
    with pytest.raises(RequestError, match="thinking_budget"):
        thinking_variables(chat, budget=512)
    with pytest.raises(RequestError, match="reasoning_effort must be"):
        llm.chat(ASKED, reasoning_effort="most")


def test_a_schema_that_cannot_be_enforced_is_only_read(llm, caplog):
    odd = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    schema = {"type": "function", "function": {"name": "odd", "parameters": odd}}
    assert llm.chat(ASKED, max_tokens=1, tools=[schema]).finish_reason == "length"
    assert "not held to the tools' schemas" in caplog.text
    for strict in ({"tool_choice": "odd"}, {"tools": [{**schema, "function": {**schema["function"], "strict": True}}]}):
        with pytest.raises(RequestError, match="uniqueItems"):
            llm.chat(ASKED, max_tokens=1, **{"tools": [schema]} | strict)


def test_a_fall_back_describes_tools_and_reads_calls(tiny_bundle):
    with runtime.LLM(tiny_bundle) as plain:
        with pytest.raises(RequestError, match="tool-fallback"):
            plain.chat(ASKED, tools=[weather])
        small = function_schema(lambda: None) | {"function": {"name": "now"}}
        with pytest.raises(RequestError, match=r"256|context|long"):
            plain.chat(ASKED, PARAMS, tools=[small], tool_choice="now", tool_fallback=True)
    written = messages_with_tools([*ASKED, {"role": "tool", "content": "21°"}], [small])
    assert '{"name": "now"}' in written[0]["content"]
    assert written[2] == {"role": "user", "content": "<tool_response>\n21°\n</tool_response>"}
