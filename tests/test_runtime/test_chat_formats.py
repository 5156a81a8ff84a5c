"""Formats of tool calls and thoughts, read off the templates in `chat_templates/formats`."""

import json
import os
import random

import pytest
from chat_cases import NAMES, message_of, random_calls, random_tools, rendered_answer, schemas, template_of, tool
from hypothesis import given
from hypothesis import strategies as st
from whole_answers import read_answer

from runtime.chat.formats.reader import AnswerReader

ROUNDS = int(os.environ.get("ONNXLM_CHAT_ROUNDS", "8"))
FROM_TABLE = {"functionary_v3_2", "gpt_oss", "granite_3_prompt_only", "lfm2", "smollm3"}
RENDERED = [name for name in NAMES if name not in FROM_TABLE - {"functionary_v3_2", "gpt_oss"}]
SINGLE = {"gpt_oss", "llama_3_1", "llama_3_2", "llama_3_3"}  # their templates write one call
_THINK = (
    "deepseek_r1 deepseek_v3_1 deepseek_v3_2 ernie_4_5_thinking glm_4_5 glm_4_7 granite_3 hunyuan kimi_k2_thinking "
    "minimax_m2 nemotron_3 nemotron_nano_v2 qwen3 qwen3_5 qwen3_thinking smollm3"
)
THINKERS = dict.fromkeys(_THINK.split(), "<think>") | {
    "apertus": "<|inner_prefix|>",
    "apriel_1_5": "Here are my reasoning steps:",
    "command_a_reasoning": "<|START_THINKING|>",
    "command_r7b": "<|START_THINKING|>",
    "gemma_4": "<|channel>thought",
    "magistral": "[THINK]",
    "seed_oss": "<seed:think>",
}


def streamed(name, answer, tools, size, **options):
    """Text, thoughts and calls of an answer that comes in pieces of `size` characters."""
    reader = AnswerReader(template_of(name).format, schemas(tools), **options)
    parts = [reader.push(answer[i : i + size]) for i in range(0, len(answer), size)] + [reader.finish()]
    calls = [(call.name, json.loads(call.arguments)) for part in parts for call in part.calls]
    return "".join(part.content for part in parts), "".join(part.reasoning for part in parts), calls


@pytest.mark.parametrize("name", NAMES)
def test_the_template_tells_the_format(name):
    found = template_of(name).format
    assert (found.source, found.problem) == ("table" if name in FROM_TABLE else "template", "")
    assert (found.thoughts.open_mark if found.thoughts else None) == THINKERS.get(name)


@pytest.mark.parametrize("name", RENDERED)
def test_calls_that_the_template_writes_are_read(name):
    rng = random.Random(f"{name}{ROUNDS}")
    for size in [1, 3, 7, 5000] * (ROUNDS // 4):
        tools = random_tools(rng)
        calls = random_calls(rng, tools, 1 if name in SINGLE else 3)
        answer = rendered_answer(name, tools, message_of(calls))
        content, _, found = streamed(name, answer, tools, size)
        assert (found, content.strip()) == ([(called, arguments) for _, called, arguments in calls], ""), answer


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(RENDERED)))
def test_calls_that_a_template_leaves_out_are_in_the_prompt_all_the_same(name):
    tools = [tool("pay", {"sum": {"type": "integer"}, "to": {"type": "string"}})]
    calls = [("call00000", "pay", {"sum": 5, "to": 'A"n'}), ("call00001", "pay", {"sum": 6, "to": "it's"})]
    answer = rendered_answer(name, tools, message_of(calls, "So: "))
    content, _, found = streamed(name, answer, tools, 3)
    assert (content.strip(), found) == ("So:", [(called, arguments) for _, called, arguments in calls])


@pytest.mark.parametrize("name", NAMES)
def test_an_earlier_call_without_content_is_no_failure(name):
    call = {"id": "call00000", "type": "function", "function": {"name": "pay", "arguments": '{"sum": 5}'}}
    answer = {"role": "assistant", "content": None, "reasoning_content": "Hm.", "tool_calls": [call]}
    asked, result = {"role": "user", "content": "Go."}, {"role": "tool", "tool_call_id": "call00000", "content": "ok"}
    prompt = template_of(name).render([asked, answer, result, {"role": "assistant", "content": "Ok."}, asked])
    assert "sum" in prompt
    assert "5" in prompt


@pytest.mark.parametrize("name", sorted(THINKERS))
def test_thoughts_and_text_are_told_apart(name):
    found = template_of(name).format
    wrapped = "{}Sunny, 21°.{}".format(*(found.wrapper or ("", "")))
    thoughts = found.thoughts
    if found.wrapper and found.wrapper[0] == thoughts.close_mark:
        wrapped = "Sunny, 21°." + found.wrapper[1]
    answer = f"{thoughts.open}Let me look:\n\n- at {{}}{thoughts.close}{wrapped}"
    for size in (1, 3, 7, 500):
        assert streamed(name, answer, [], size) == ("Sunny, 21°.", "Let me look:\n\n- at {}", [])
        opened = answer[len(thoughts.open) :]
        assert streamed(name, opened, [], size, in_thought=True)[:2] == ("Sunny, 21°.", "Let me look:\n\n- at {}")


@pytest.mark.parametrize("name", sorted(THINKERS.keys() & set(RENDERED)))
def test_a_call_inside_a_thought_is_no_call(name):
    tools = [tool("pay", {"sum": {"type": "integer"}})]
    thoughts = template_of(name).format.thoughts
    call = rendered_answer(name, tools, message_of([("call00000", "pay", {"sum": 5})]))
    call = call.replace(thoughts.open_mark, "").replace(thoughts.close_mark, "")
    answer = f"{thoughts.open}I could write {call}, but no.{thoughts.close}No."
    content, reasoning, calls = streamed(name, answer, tools, 3)
    assert (content.strip(), calls) == ("No.", [])
    assert "pay" in reasoning


_MARKS = (
    "<tool_call> </tool_call> [TOOL_CALLS] [ARGS] <|tool_call|> <think> </think> <function=pay> <parameter=sum> "
    "</parameter> </function> <|channel|> <|message|> final analysis <|call|> functools <arg_key> <|python_tag|> "
    'call:pay{ <|"|> <tool_call|> pay(sum=1) pay { } [ ] " \\ ` é'
)
PARTS = [
    *_MARKS.split(),
    '{"name": "pay", "arguments": {"sum": 1}}',
    " to=functions.pay",
    ">>>pay\n",
    "all\n",
    "\n",
    " ",
]


@given(st.sampled_from(NAMES), st.lists(st.sampled_from(PARTS), max_size=12), st.integers(1, 9))
def test_any_answer_is_read_the_same_in_any_pieces(name, parts, size):
    answer, tools = "".join(parts), [tool("pay", {"sum": {"type": "integer"}})]
    whole = streamed(name, answer, tools, 10_000)
    assert streamed(name, answer, tools, size) == whole
    assert all(called == "pay" for called, _ in whole[2])


@pytest.mark.parametrize("name", RENDERED)
def test_a_cut_or_changed_answer_never_fails_and_invents_nothing(name):
    rng = random.Random(name)
    tools = [tool("pay", {"sum": {"type": "integer"}, "to": {"type": "string"}})]
    answer = rendered_answer(name, tools, message_of([("call00000", "pay", {"sum": 5, "to": "Ann"})]))
    for _ in range(12):
        place = rng.randrange(len(answer))
        for broken in (answer[:place], answer[:place] + answer[place + 1 :], answer[:place] + "<" + answer[place:]):
            content, reasoning, calls = streamed(name, broken, tools, 3)
            assert (
                calls or content.strip() or reasoning or "think" in broken.lower() or not broken.strip("\n \t[]<>{}`|")
            )
            assert all(called == "pay" for called, _ in calls)


@pytest.mark.parametrize("name", NAMES)
def test_no_call_comes_from_text_without_one(name):
    tools = [tool("pay", {"sum": {"type": "integer"}})]
    for text in (
        "Use pay(sum=1).",
        'Try {"name": "pay", "arguments": {"sum": 1}}.',
        "So `<tool_call>` opens it.",
        "2 < 3 [a] {b}",
    ):
        content, _, calls = streamed(name, text, tools, 3)
        assert (content, calls) == (text, [])


def test_what_cannot_be_read_is_text_and_the_log_says_so(caplog):
    answer = '<tool_call>\n{"name": "steal", "arguments": {}}\n</tool_call>'
    assert streamed("qwen3", answer, [tool("pay", {})], 3) == (answer, "", [])
    assert "could not be read" in caplog.text


def test_one_bad_call_does_not_hide_a_good_one():
    answer = 'Hm <tool_call>{bad}</tool_call>\n<tool_call>{"name": "pay", "arguments": {"sum": 1}}</tool_call> Done.'
    content, _, calls = streamed("qwen3", answer, [tool("pay", {"sum": {"type": "integer"}})], 3)
    assert (content, calls) == ("Hm <tool_call>{bad}</tool_call>\n Done.", [("pay", {"sum": 1})])


@pytest.mark.parametrize(
    ("name", "answer"),
    [("qwen3", '<tool_call>{"name": "pay", "arguments": {"sum": 1.10, "n": 1e3}}</tool_call>'),
     ("seed_oss", "<seed:tool_call><function=pay><parameter=sum>1.10</parameter><parameter=n>1e3</parameter></function>"),  # noqa: E501  # one answer
     ("lfm2", "<|tool_call_start|>[pay(sum=1.10, n=1e3)]<|tool_call_end|>"),
     ("gemma_4", "<|tool_call>call:pay{sum:1.10,n:1e3}<tool_call|>")],
)  # fmt: skip
def test_numbers_keep_their_spelling(name, answer):
    tools = {"pay": {"properties": {"sum": {"type": "number"}, "n": {"type": "number"}}}}
    (call,) = read_answer(answer, template_of(name).format, tools).calls
    assert call.arguments == '{"sum": 1.10, "n": 1e3}'


def test_a_call_that_is_cut_off_by_length_is_no_text():
    for name in RENDERED:
        tools = [tool("pay", {"to": {"type": "string"}})]
        answer = rendered_answer(name, tools, message_of([("call00000", "pay", {"to": "Ann and Bob"})]))
        reader = AnswerReader(template_of(name).format, schemas(tools))
        parts = [reader.push(answer[: answer.index("Ann") + 2]), reader.finish(cut=True)]
        assert ["".join(part.content.strip() for part in parts), parts[0].calls + parts[1].calls] == ["", ()], name


def test_reading_costs_the_same_for_every_character():
    import time

    def seconds(size):
        reader = AnswerReader(template_of("qwen3").format, {"pay": {}})
        text = '<tool_call>{"name": "pay", "arguments": {"to": "' + "a <tool_" * size + '"}}</tool_call>'
        begun = time.process_time()
        for i in range(0, len(text), 4):
            reader.push(text[i : i + 4])
        assert reader.finish().calls == ()
        assert len(text) > size
        return time.process_time() - begun

    seconds(100)
    assert seconds(20_000) < 40 * max(seconds(2_000), 0.001)
