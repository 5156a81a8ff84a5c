"""Forced calls: a model without any idea writes calls in the template's own format, and they are read back."""

import json
from functools import lru_cache

import numpy as np
import pytest
from chat_cases import NAMES, schemas, template_of, tool
from conftest import tiny_tokenizer
from tokenizers import AddedToken
from tokenizers import Tokenizer as HuggingFaceTokenizer
from whole_answers import read_answer

from runtime.chat.answer_plan import AnswerPlanner
from runtime.chat.formats.grammar import CallGrammar
from runtime.errors import RequestError
from runtime.options import SamplingParams
from runtime.sampling.grammar import Grammars, StructuredOutput
from runtime.sampling.sampler import Sampler
from runtime.text.detokenizer import Detokenizer
from runtime.text.tokenizer import Tokenizer

EOS = 2
PAY = tool(
    "pay.now",
    {
        "to": {"enum": ["Ann", 'B"o']},
        "sum": {"type": "integer", "minimum": 0, "maximum": 9},
        "note": {"type": "string", "maxLength": 4},
        "fast": {"type": "boolean"},
        "split": {
            "type": "object",
            "properties": {"days": {"type": "array", "items": {"enum": [1, 2]}, "maxItems": 2}},
            "required": ["days"],
        },
    },
    ["to", "split"],
)
TOOLS = [PAY, tool("now", {})]


@lru_cache
def tokenizer_of(name, special):
    """The tiny tokenizer with the format's marks as tokens: special ones, plain ones, or none (None)."""
    inner = HuggingFaceTokenizer.from_str(tiny_tokenizer())
    marks = sorted(template_of(name).format.marks) if special is not None else []
    inner.add_tokens([AddedToken(mark, special=bool(special)) for mark in marks])
    path = _folder() / f"{name}-{special}.json"
    inner.save(str(path))
    return Tokenizer(path)


@lru_cache
def _folder():
    import tempfile
    from pathlib import Path

    return Path(tempfile.mkdtemp())


def written(tokenizer, wanted, *, seed=1, beginning="", unlikely=()):
    """An answer of a model that chooses by chance, after a beginning that it is made to write; quotes are likely."""
    size = tokenizer.vocab_size
    constraint = Grammars(tokenizer, size, [EOS]).constraint(wanted)
    sampler = Sampler(SamplingParams(temperature=1.0, seed=seed), size, stop_ids=[EOS], constraint=constraint)
    detokenizer, rng = Detokenizer(tokenizer, tokenizer.special), np.random.default_rng(seed)
    closing = [i for i in range(size) if tokenizer.token(i)[-1:] in ('"', "}", "<", ")") or tokenizer.is_added(i)]
    forced, text = tokenizer.encode(beginning, add_special_tokens=False) if beginning else [], ""
    for step in range(1500):
        logits = rng.standard_normal(size)
        logits[closing] += 2
        logits[[i for mark in unlikely if (i := tokenizer.id_of(mark)) is not None]] = -99
        if step < len(forced):
            logits[forced[step]] = 1000
        token = sampler.sample(logits).token_id
        if token == EOS:
            return text + detokenizer.flush()
        text += detokenizer.push(token)
    return None


def check(calls):
    for call in calls:
        arguments = json.loads(call.arguments)
        if call.name == "now":
            assert arguments == {}
            continue
        assert arguments["to"] in ("Ann", 'B"o')
        assert set(arguments["split"]) == {"days"}
        assert list(arguments) == [key for key in PAY["function"]["parameters"]["properties"] if key in arguments]
        assert isinstance(arguments.get("fast", True), bool)
        assert 0 <= arguments.get("sum", 0) <= 9


@pytest.mark.parametrize("special", [True, False], ids=["special marks", "plain marks"])
@pytest.mark.parametrize("name", NAMES)
def test_forced_calls_are_calls(name, special):
    chat, tokenizer = template_of(name).format, tokenizer_of(name, special)
    prompt = template_of(name).render([{"role": "user", "content": "Pay."}], tools=TOOLS)
    opened = chat.thoughts is not None and prompt.rstrip().endswith(chat.thoughts.open_mark)
    grammar = CallGrammar(chat, TOOLS, tokenizer, in_thought=opened)
    beginning = f"Hm.{chat.thoughts.close_mark}" if opened else ""
    unlikely = [chat.thoughts.open_mark] if chat.thoughts else ["<|channel|>analysis"]
    answer = written(tokenizer, grammar.forced(), beginning=beginning, unlikely=unlikely)
    part = read_answer(answer, chat, schemas(TOOLS), in_thought=opened)
    assert (part.content.strip(), bool(part.calls)) == ("", True), answer
    check(part.calls)


@pytest.mark.parametrize("name", NAMES)
def test_exactly_one_call_where_one_is_wanted(name):
    chat, tokenizer = template_of(name).format, tokenizer_of(name, True)
    grammar = CallGrammar(chat, [tool("now", {})], tokenizer, parallel=False)
    unlikely = [chat.thoughts.open_mark] if chat.thoughts else ["<|channel|>analysis"]
    answers = [written(tokenizer, grammar.forced(), seed=seed, unlikely=unlikely) for seed in range(2)]
    assert [len(read_answer(answer, chat, {"now": {}}).calls) for answer in answers if answer is not None] in (
        [1, 1],
        [1],
    )


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("llama_4_pythonic",)])
def test_a_call_that_the_model_begins_by_itself_keeps_to_the_schema(name):
    chat, tokenizer = template_of(name).format, tokenizer_of(name, True)
    frame = chat.calls
    lazy = CallGrammar(chat, [PAY], tokenizer).lazy()
    opening = (frame.section_open + frame.open).lstrip()
    mark = frame.section_mark or frame.open_mark or opening + frame.before_name
    begun = mark if frame.bare else f"Well. {mark}"
    begun = {"channels": "<|channel|>commentary to=functions.", "recipients": "all\nHm.>>>"}.get(frame.shape, begun)
    answer = written(tokenizer, lazy, beginning=begun)
    calls = read_answer(answer, chat, schemas([PAY])).calls
    assert calls, answer
    check(calls)


def test_text_is_free_until_a_call_begins():
    chat, tokenizer = template_of("qwen3").format, tokenizer_of("qwen3", True)
    lazy = CallGrammar(chat, TOOLS, tokenizer).lazy()
    constraint = Grammars(tokenizer, tokenizer.vocab_size, [EOS]).constraint(lazy)
    for token in tokenizer.encode("<think>no <tool_call></think> 2 < 3", add_special_tokens=False):
        assert constraint.allowed() is None
        constraint.advance(token)
    constraint.advance(tokenizer.id_of("<tool_call>"))
    assert constraint.allowed().sum() < 10


def holding(properties, **more):
    return {"type": "object", "properties": properties, "required": list(properties)} | more


NODE = holding({"value": {"enum": [1]}, "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}})
SCHEMAS = {
    "defs": holding({"a": {"$ref": "#/$defs/node"}}, **{"$defs": {"node": NODE}}),
    "definitions": holding({"a": {"$ref": "#/definitions/x"}}, definitions={"x": {"enum": [7]}}),
    "properties": holding({"a": {"enum": [3]}, "b": {"$ref": "#/properties/a"}}),
}


@pytest.mark.parametrize("name", ["qwen3", "qwen3_coder", "gemma_4", "lfm2", "mistral_v3", "glm_4_5", "apertus"])
@pytest.mark.parametrize("kind", sorted(SCHEMAS))
def test_references_are_those_of_the_tool_itself(name, kind):
    chat, tokenizer = template_of(name).format, tokenizer_of(name, True)
    other = holding({"a": {"$ref": "#/$defs/node"}}, **{"$defs": {"node": {"enum": [9]}}})
    tools = [tool("first", {}), tool("second", {})]
    tools[0]["function"]["parameters"], tools[1]["function"]["parameters"] = SCHEMAS[kind], other
    for seed in range(3):
        answer = written(tokenizer, CallGrammar(chat, tools, tokenizer).forced(), seed=seed, unlikely=["<think>"])
        if answer is None:  # a list without an end
            continue
        for call in read_answer(answer, chat, schemas(tools)).calls:
            arguments = json.loads(call.arguments)
            expected = {"defs": dict, "definitions": 7, "properties": 3}[kind] if call.name == "first" else 9
            assert arguments["a"] == expected or (expected is dict and arguments["a"]["value"] == 1), answer


def test_a_call_or_an_answer_in_the_schema():
    chat, tokenizer = template_of("qwen3").format, tokenizer_of("qwen3", True)
    wanted = StructuredOutput(
        json_schema={"type": "object", "properties": {"ok": {"enum": [True]}}, "required": ["ok"]}
    )
    both = CallGrammar(chat, [tool("now", {})], tokenizer).with_answer(wanted)
    kinds = set()
    for seed in range(6):
        part = read_answer(written(tokenizer, both, seed=seed, unlikely=["<think>"]), chat, {"now": {}})
        kinds.add(bool(part.calls))
        assert part.calls or json.loads(part.content) == {"ok": True}
    assert kinds == {True, False}


@pytest.mark.parametrize("name", ["qwen3_thinking", "qwen3", "gpt_oss", "functionary_v3_2", "mistral_v3", "apriel_1_5"])
@pytest.mark.parametrize("tools", [[], [tool("now", {})]], ids=["no tools", "tools"])
def test_an_answer_in_a_schema_comes_after_the_thought(name, tools):
    template, tokenizer = template_of(name), tokenizer_of(name, True)
    compile_ = Grammars(tokenizer, tokenizer.vocab_size, [EOS]).constraint
    wanted = StructuredOutput(json_schema=holding({"ok": {"enum": [True]}}))
    plan = AnswerPlanner(template, tokenizer, compile_).plan([{"role": "user", "content": "Go."}], tools, None, wanted)
    beginning = f"Hm.{plan.chat.thoughts.close_mark}" if plan.in_thought else ""
    unlikely = [plan.chat.thoughts.open_mark] if plan.chat.thoughts else ["<|channel|>analysis"]
    answer = written(tokenizer, plan.structured, beginning=beginning, unlikely=unlikely)
    part = read_answer(answer, plan.chat, plan.schemas, in_thought=plan.in_thought)
    assert part.calls or json.loads(part.content) == {"ok": True}
    assert part.reasoning == "Hm." or not plan.in_thought


@pytest.mark.parametrize("tools", [[], [{}], [{"function": {"name": 5}}]])
def test_forcing_needs_tools(tools):
    with pytest.raises(RequestError, match="tool"):
        CallGrammar(template_of("qwen3").format, tools, tokenizer_of("qwen3", True))
