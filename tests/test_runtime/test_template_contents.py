"""What a user wrote is in the prompt, however the template reads contents; or the request is refused."""

import pytest

from runtime.chat.template import ChatTemplate
from runtime.errors import RequestError

LOOP = "{%% for m in messages %%}<%%s>%s{%% endfor %%}".replace("<%%s>", "<{{ m.role }}>")
FILTER = LOOP % "{{ m.content | selectattr('type', 'equalto', 'text') | map(attribute='text') | join }}"
READERS = {
    "text": LOOP % "{{ m.content }}",
    "trimmed": LOOP % "{{ m['content'] | trim }}",
    "escaped": LOOP % "{{ m.content | tojson }}",
    "both": LOOP % "{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}",
    "loop": LOOP % "{% for p in m.content %}{{ p.text }}{% endfor %}",
    "filter": FILTER,
    "first part": LOOP % "{{ m.content[0].text }}",
    "first part or text": LOOP % "{{ m.content if m.content is string else m.content[0]['text'] }}",
    "variable": LOOP % "{% set c = m.content %}{% for p in c %}{{ p.text if p.type == 'text' }}{% endfor %}",
    "macro": "{% macro f(c) %}{% for p in c %}{{ p['text'] }}{% endfor %}{% endmacro %}" + LOOP % "{{ f(m.content) }}",
    "users in parts": LOOP
    % "{% if m.role == 'user' %}{{ m.content | map(attribute='text') | join }}{% else %}{{ m.content }}{% endif %}",
}  # fmt: skip
ONE, TWO = ({"type": "text", "text": text} for text in ("I wonder why", "the sky is blue"))
CONTENTS = {"text": "I wonder why", "one part": [ONE], "two parts": [ONE, TWO]}


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("reader", READERS)
def test_all_text_is_shown_and_nothing_else(reader, content):
    chat = [{"role": "system", "content": "Be brief"}, {"role": "user", "content": CONTENTS[content]}]
    prompt = ChatTemplate(READERS[reader]).render(chat)
    wanted = "I wonder why" + ("the sky is blue" if content == "two parts" else "")
    assert prompt.replace('"', "") == f"<system>Be brief<user>{wanted}"


LOSERS = {
    "the last only": "{{ messages[-1].content }}",
    "the first only": "{{ messages[0]['content'] }}",
    "no system": LOOP % "{% if m.role != 'system' %}{{ m.content }}{% endif %}",
    "cut": LOOP % "{{ m.content[:8] }}",
    "no user": LOOP % "{% if m.role != 'user' %}{{ m.content }}{% endif %}",
    "every second": LOOP % "{% if loop.index is odd %}{{ m.content }}{% endif %}",
    "last ten": "{% for m in messages[-1:] %}{{ m.content }}{% endfor %}",
}


@pytest.mark.parametrize("content", ["user", "Why is the sky blue in the morning?"])
@pytest.mark.parametrize("loser", LOSERS)
def test_text_that_would_be_lost_is_refused(loser, content):
    chat = [{"role": "system", "content": f"s {content}"}, {"role": "user", "content": content}]
    with pytest.raises(RequestError, match="leaves this text out"):
        ChatTemplate(LOSERS[loser]).render(chat)


def test_parts_are_joined_only_where_the_template_does_not_take_them():
    chat = [{"role": "user", "content": [ONE, TWO]}]
    lines = LOOP % "{{ m.content if m.content is string else m.content | map(attribute='text') | join('\n') }}"
    assert ChatTemplate(lines).render(chat) == "<user>I wonder why\nthe sky is blue"
    assert ChatTemplate(READERS["text"]).render(chat) == "<user>I wonder whythe sky is blue"


CALL = {"type": "function", "id": "abcdef123", "function": {"name": "weather", "arguments": {}}}
CALLS = "{% if m.tool_calls %}{{ m.tool_calls[0].function.name }}{% endif %}"
CALLERS = {
    "is none": LOOP % ("{% if m.content is none %}" + CALLS + "{% else %}{{ m.content }}{% endif %}"),
    "is not none": LOOP % ("{% if m.content is not none %}{{ m.content }}{% endif %}" + CALLS),
    "is defined": LOOP % ("{% if m.content is defined %}{{ m.content }}{% endif %}" + CALLS),
    "not in": LOOP % ("{% if 'content' not in m %}" + CALLS + "{% else %}{{ m.content }}{% endif %}"),
    "added": LOOP % ("{{ '' + m['content'] }}" + CALLS),
    "empty": LOOP % ("{% if m.content == '' %}" + CALLS + "{% else %}{{ m.content }}{% endif %}"),
    "trimmed": LOOP % ("{{ m.content | trim }}" + CALLS),
}


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("content", [{"content": None}, {}])
def test_calls_without_content_are_shown(caller, content):
    chat = [{"role": "user", "content": "Go"}, {"role": "assistant", "tool_calls": [CALL]} | content]
    assert ChatTemplate(CALLERS[caller]).render(chat) == "<user>Go<assistant>weather"


def test_the_last_message_is_continued():
    template = ChatTemplate(READERS["trimmed"] + "{% if add_generation_prompt %}<assistant>{% endif %}")
    chat = [{"role": "user", "content": "Go"}, {"role": "assistant", "content": "The sky "}]
    assert template.render(chat, continue_final_message=True) == "<user>Go<assistant>The sky"
    with pytest.raises(RequestError, match="must have a text to continue"):
        template.render([{"role": "assistant", "tool_calls": [CALL]}], continue_final_message=True)


def test_thoughts_of_earlier_answers_may_be_left_out():
    template = ChatTemplate(LOOP % "{{ m.content.split('</think>')[-1] }}")
    chat = [{"role": "user", "content": "Go"}, {"role": "assistant", "content": "<think>hm</think>On I go, and on"}]
    assert template.render(chat) == "<user>Go<assistant>On I go, and on"
    with pytest.raises(RequestError, match=r"messages\[0\]"):
        template.render([{"role": "user", "content": "<think>hm</think>What I say"}])
