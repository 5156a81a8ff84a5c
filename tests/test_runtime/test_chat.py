from pathlib import Path

import pytest
from jinja2 import TemplateError

from runtime.chat.template import ChatTemplate
from runtime.errors import ChatTemplateError, RequestError

FOLDER = Path(__file__).parent / "chat_templates"
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": 'Tells the weather of a place – "now" <or> l\'heure, 世界.',
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string"},
                "days": {"type": "array", "items": {"type": "array", "items": {"enum": ["today", "tomorrow"]}}},
            },
            "required": ["place"],
        },
    },
}
CALL = {"id": "abcdef123", "type": "function", "function": {"name": "weather", "arguments": {"place": "Köln <3"}}}
CHATS = {
    "question": [{"role": "user", "content": "  Why is the sky blue? <b>&amp;</b>\n"}],
    "system": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
    "turns": [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello 👩‍👩‍👧\nthere"},
        {"role": "user", "content": "More {{ 7 * 7 }} {% raw %}"},
    ],
    "reasoning": [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello", "reasoning": "they greet", "refusal": None},
        {"role": "user", "content": "And?"},
    ],
    "tools": [
        {"role": "user", "content": "Weather in Köln?"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "sunny", "tool_call_id": "abcdef123"},
        {"role": "assistant", "content": "It is sunny."},
        {"role": "user", "content": "Thanks"},
    ],
    "two calls": [{"role": "user", "content": "Go"}, {"role": "assistant", "content": "", "tool_calls": [CALL, CALL]}],
    "not alternating": [{"role": "user", "content": "Hi"}, {"role": "user", "content": "Hi?"}],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "Hi "}, {"type": "text", "text": "there"}]}],
}


def source(name):
    return (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def expected():
    """What transformers renders; the words of its exceptions are those of our errors."""
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models

    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), **TOKENS)

    def render(template, messages, tools, **variables):
        try:
            return tokenizer.apply_chat_template(
                messages, tools=tools, chat_template=template, tokenize=False, add_generation_prompt=True, **variables
            )
        except (TemplateError, TypeError) as error:
            return f"failed: {error}"

    return render


def ours(template, messages, tools, **variables):
    try:
        return ChatTemplate(template, TOKENS).render(messages, tools=tools, **variables)
    except ChatTemplateError as error:
        return str(error).removeprefix("The model's chat template ")


@pytest.mark.parametrize("tools", [None, [WEATHER], [WEATHER, WEATHER]], ids=["no tools", "tool", "tools"])
@pytest.mark.parametrize("chat", [name for name in CHATS if name != "parts"])
@pytest.mark.parametrize("template", sorted(path.stem for path in FOLDER.glob("*.jinja")))
def test_renders_as_transformers(expected, template, chat, tools):
    if (template, chat) == ("macros_style", "system"):
        pytest.skip("drops the system message: see below")
    assert ours(source(template), CHATS[chat], tools) == expected(source(template), CHATS[chat], tools)


def test_a_message_that_the_template_would_drop_is_refused(expected):
    assert "Be brief" not in expected(source("macros_style"), CHATS["system"], None)
    with pytest.raises(RequestError, match=r"messages\[0\].content: .* leaves this text out .*role 'system'"):
        ours(source("macros_style"), CHATS["system"], None)


def test_parts_as_transformers_where_the_template_reads_them(expected):
    template = source("gemma_style")
    assert ours(template, CHATS["parts"], None) == expected(template, CHATS["parts"], None)


def test_parts_are_joined_where_it_does_not():
    assert "Hi there<|im_end|>" in ours(source("smollm2"), CHATS["parts"], None)


def test_variables_reach_the_template(expected):
    template, chat = source("qwen_style"), CHATS["question"]
    assert ours(template, chat, None, enable_thinking=False) == expected(template, chat, None, enable_thinking=False)
    assert ours(template, chat, None, enable_thinking=False) != ours(template, chat, None)


def test_arguments_as_json_text_render_as_an_object():
    text = {
        "role": "assistant",
        "tool_calls": [CALL | {"function": CALL["function"] | {"arguments": '{"place": "Köln <3"}'}}],
    }
    chat = [*CHATS["tools"][:1], text, *CHATS["tools"][2:]]
    assert ours(source("llama3_style"), chat, None) == ours(source("llama3_style"), CHATS["tools"], None)


def test_the_messages_are_not_changed():
    chat = [{"role": "user", "content": [{"type": "text", "text": "a"}], "name": None}]
    ours(source("smollm2"), chat, None)
    assert chat == [{"role": "user", "content": [{"type": "text", "text": "a"}], "name": None}]


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "at least one"),
        ("Hi", "must be a list"),
        ({"role": "user", "content": "Hi"}, "must be a list"),
        (["Hi"], r"messages\[0\] must be an object"),
        ([{"content": "Hi"}], r"messages\[0\].role"),
        ([{"role": 1, "content": "Hi"}], r"messages\[0\].role"),
        ([{"role": "user"}], "neither content nor tool_calls"),
        ([{"role": "user", "content": 5}], r"content must be text"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}], "reads text only"),
        ([{"role": "user", "content": "Hi", "extra": object()}], "extra: a object is not data"),
        ([{"role": "user", "content": "Hi", "extra": {1: 2}}], "the key 1 is not a string"),
    ],
)
def test_messages_are_checked(messages, words):
    with pytest.raises(RequestError, match=words):
        ChatTemplate("x").render(messages)


def test_messages_that_contain_themselves_are_refused():
    message = {"role": "user", "content": "Hi"}
    message["self"] = message
    with pytest.raises(RequestError, match="contains itself"):
        ChatTemplate("x").render([message])


@pytest.mark.parametrize("tools", ["x", [1], {"a": 1}])
def test_tools_are_checked(tools):
    with pytest.raises(RequestError, match="tools must be a list"):
        ChatTemplate("x").render(CHATS["question"], tools=tools)


def test_what_the_template_says_is_in_the_error():
    with pytest.raises(ChatTemplateError, match="must alternate"):
        ChatTemplate(source("gemma_style"), TOKENS).render(CHATS["not alternating"])


def test_a_broken_template_is_an_error_at_once():
    with pytest.raises(ChatTemplateError, match="is broken"):
        ChatTemplate("{% for %}")


@pytest.mark.parametrize(
    ("name", "shape"),
    [("qwen_style", "json"), ("mistral_style", "json"), ("llama3_style", "json"), ("smollm2", None)],
)
def test_the_template_tells_how_tools_are_called(name, shape):
    calls = ChatTemplate(source(name), TOKENS).format.calls
    assert (calls and calls.shape) == shape


def test_switches_that_a_template_cuts_out_of_the_text_are_no_loss():
    source = (FOLDER / "formats" / "nemotron_nano_v2.jinja").read_text()
    chat = [
        {"role": "system", "content": "Be brief /no_think"},
        {"role": "user", "content": "Why is the sky blue? /think"},
    ]
    prompt = ChatTemplate(source).render(chat)
    assert "<SPECIAL_10>System\nBe brief\n" in prompt
    assert "<SPECIAL_11>User\nWhy is the sky blue?\n" in prompt
    assert prompt.endswith("<think></think>")
