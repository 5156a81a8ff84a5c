import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken
from tokenizers import Tokenizer as HuggingFaceTokenizer

from runtime.chat.formats.tool_calls import ToolCallReader, family_of, parse_tool_calls
from runtime.chat.formats.tool_grammar import tool_grammar
from runtime.errors import RequestError
from runtime.options import SamplingParams
from runtime.sampling.grammar import Grammars
from runtime.sampling.sampler import Sampler
from runtime.text.tokenizer import Detokenizer, Tokenizer

FAMILIES = ("hermes", "mistral", "granite", "llama")
ADD = '{"name": "add", "arguments": {"a": 1, "b": "é"}}'
SUB = '{"name": "sub", "arguments": {}}'
LLAMA_ADD = ADD.replace("arguments", "parameters")
TOOLS = [
    {"type": "function", "function": {"name": "add", "parameters": {
        "type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}}},
    {"type": "function", "function": {"name": "now"}},
]  # fmt: skip


def read(family, text, names=("add", "sub"), size=3):
    """Text and (name, arguments) of an answer that comes in pieces."""
    reader = ToolCallReader(family, names)
    shown = "".join(reader.push(text[i : i + size]) for i in range(0, len(text), size))
    rest, calls = reader.finish()
    return shown + rest, [(call.name, json.loads(call.arguments)) for call in calls]


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    ("family", "text", "left", "names"),
    [
        ("hermes", f"<tool_call>\n{ADD}\n</tool_call>", "", ["add"]),
        ("hermes", f"So:\n<tool_call>{ADD}</tool_call>\n<tool_call>\n{SUB}\n</tool_call>", "So:\n", ["add", "sub"]),
        ("hermes", f"<tool_call>{ADD}", "", ["add"]),
        ("hermes", f"<tool_call>{ADD}</tool_call> done", "done", ["add"]),
        ("mistral", f"[TOOL_CALLS] [{ADD}, {SUB}]", "", ["add", "sub"]),
        ("mistral", f"Well: [TOOL_CALLS][{ADD}]", "Well: ", ["add"]),
        ("mistral", '[TOOL_CALLS]add[ARGS]{"a": 1, "b": "é"}[TOOL_CALLS]sub[CALL_ID]abc[ARGS]{}', "", ["add", "sub"]),
        ("granite", f"<|tool_call|>[{ADD}]<|/tool_call|>", "", ["add"]),
        ("llama", LLAMA_ADD, "", ["add"]),
        ("llama", f"<|python_tag|>{LLAMA_ADD}; {SUB}", "", ["add", "sub"]),
        ("llama", f"  \n{LLAMA_ADD}\n", "  \n", ["add"]),
    ],
)  # fmt: skip
def test_calls_are_taken_out(family, text, left, names, size):
    shown, calls = read(family, text, size=size)
    assert shown.strip() == left.strip()
    assert [name for name, _ in calls] == names
    assert calls[0] == ("add", {"a": 1, "b": "é"})


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("hermes", "no call at all <tool"),
        ("hermes", "<tool_call>{broken</tool_call>"),
        ("hermes", '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "add", "arguments": [1]}</tool_call>'),
        ("hermes", '<tool_call>{"name": "add", "arguments": {"a": NaN}}</tool_call>'),
        ("hermes", "<tool_call>" + "[" * 100_000),
        ("mistral", "[TOOL_CALLS] later"),
        ("mistral", "[TOOL_CALLS][]"),
        ("llama", 'Use {"name": "add", "parameters": {}}'),
        ("llama", '{"name": "add", "parameters": {}} or so'),
        ("llama", '{"answer": 42}'),
    ],
)
def test_what_is_no_call_stays_text(family, text):
    assert read(family, text) == (text, [])


def test_one_bad_call_does_not_hide_a_good_one():
    text, calls = read("hermes", f"<tool_call>{{bad}}</tool_call><tool_call>{ADD}</tool_call>")
    assert text == "<tool_call>{bad}</tool_call>"
    assert [name for name, _ in calls] == ["add"]


def test_arguments_written_as_text_are_read():
    call = '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>'
    assert read("hermes", call) == ("", [("add", {"a": 1})])


def test_ids_are_nine_letters_and_differ():
    _, calls = parse_tool_calls(f"[TOOL_CALLS][{ADD},{ADD}]", "mistral", {"add"})
    assert [len(call.id) for call in calls] == [9, 9]
    assert calls[0].id != calls[1].id


PARTS = ["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|tool_call|>", "<|python_tag|>", ADD, *"[]{} x;"]


@given(st.sampled_from(FAMILIES), st.lists(st.sampled_from(PARTS)), st.integers(1, 9))
def test_pieces_do_not_matter(family, parts, size):
    text = "".join(parts)
    assert read(family, text, size=size) == read(family, text, size=len(text) + 1)


@pytest.mark.parametrize(
    ("template", "family"),
    [
        ("… <tool_call> …", "hermes"),
        ("… [TOOL_CALLS] …", "mistral"),
        ("… <|tool_call|> …", "granite"),
        ('{% if tools %} "parameters" {% endif %}', "llama"),
        ("{{ messages }}", None),
    ],
)
def test_the_template_tells_the_family(template, family):
    assert family_of(template) == family


@pytest.fixture(scope="module", params=[True, False], ids=["special marks", "plain marks"])
def tokenizer(request, tiny_bundle, tmp_path_factory):
    """The tiny tokenizer with the marks as tokens of their own."""
    inner = HuggingFaceTokenizer.from_file(str(tiny_bundle / "tokenizer.json"))
    inner.add_tokens(
        [AddedToken(mark, special=request.param) for mark in ("<tool_call>", "[TOOL_CALLS]", "<|tool_call|>")]
    )
    path = tmp_path_factory.mktemp("marks") / "tokenizer.json"
    inner.save(str(path))
    return Tokenizer(path)


@pytest.mark.parametrize("family", FAMILIES)
def test_forced_calls_are_calls(tokenizer, family):
    wanted = tool_grammar(family, TOOLS, tokenizer)
    constraint = Grammars(tokenizer, tokenizer.vocab_size, [2]).constraint(wanted)
    params = SamplingParams(temperature=1.0, seed=1)
    sampler = Sampler(params, tokenizer.vocab_size, stop_ids=[2], constraint=constraint)
    detokenizer, text, rng = Detokenizer(tokenizer), "", np.random.default_rng(1)
    while (token := sampler.sample(rng.standard_normal(tokenizer.vocab_size)).token_id) != 2 and len(text) < 4000:
        text += detokenizer.push(token)
    left, calls = parse_tool_calls(text, family, {"add", "now"})
    assert (left, bool(calls)) == ("", True)
    assert all(json.loads(call.arguments) in ({"a": 1}, {"a": 2}) for call in calls if call.name == "add")


@pytest.mark.parametrize("family", ["hermes", "mistral", "granite", "llama"])
def test_a_single_call_where_only_one_is_wanted(tokenizer, family):
    wanted = tool_grammar(family, TOOLS, tokenizer, parallel=False)
    Grammars(tokenizer, tokenizer.vocab_size, [2]).constraint(wanted)  # it compiles
    assert "{0,7}" not in wanted.lark


@pytest.mark.parametrize("tools", [[], [{}], [{"function": {"name": 5}}]])
def test_forcing_needs_tools(tokenizer, tools):
    with pytest.raises(RequestError, match="tool"):
        tool_grammar("hermes", tools, tokenizer)
