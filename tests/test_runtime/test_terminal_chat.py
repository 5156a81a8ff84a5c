"""The commands of a chat in the terminal, and how its answers are drawn."""

import io
import json
import re
from dataclasses import replace

import pytest
from rich.console import Console

import runtime
from runtime.chat.formats.format import ToolCall
from runtime.cli.chat.commands import COMMANDS, ChatState, react
from runtime.cli.chat.conversation import Conversation
from runtime.cli.chat.markdown import MarkdownStream, split_blocks
from runtime.engine.generation import OutputDelta

PARAMS = runtime.SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(tiny_bundle):
    with runtime.LLM(tiny_bundle, options=runtime.EngineOptions(max_concurrency=1)) as llm:
        yield llm


@pytest.fixture
def state(llm):
    return ChatState(Conversation(llm, PARAMS, "Be brief"))


def ask(state, text):
    return "".join(delta.text for delta in state.conversation.ask(text))


def test_retry_asks_the_same_again_and_undo_forgets(state):
    first = ask(state, "Hi")
    react(state, "/retry")
    assert state.question == "Hi"
    assert ask(state, state.question) == first
    assert react(state, "/undo") == "Forgotten: Hi"
    assert [message["role"] for message in state.conversation.messages] == ["system"]


def test_a_saved_conversation_goes_on_as_if_it_had_not_ended(state, llm, tmp_path):
    ask(state, "Hi")
    react(state, f"/save {tmp_path / 'chat.json'}")
    again = ChatState(Conversation(llm, PARAMS))
    react(again, f"/load {tmp_path / 'chat.json'}")
    assert ask(again, "And?") == ask(state, "And?")


def test_a_parameter_is_set_for_the_answers_to_come(state):
    assert "max_tokens=3" in react(state, "/params max_tokens=3 seed=7")
    assert len(list(state.conversation.ask("Hi"))) <= 3
    assert react(state, "/params heat=1").startswith("Error: 'heat' is no sampling parameter. There are: max_tokens")
    assert react(state, "/params temperature=-1").startswith("Error: ")
    assert state.conversation.params.temperature == 0.0


def test_another_system_message_begins_anew(state):
    ask(state, "Hi")
    react(state, "/system Be long")
    assert state.conversation.messages == [{"role": "system", "content": "Be long"}]
    react(state, "/system none")
    assert state.conversation.messages == []


@pytest.mark.parametrize("content", ["", "[]", '{"messages": 3}', '{"messages": [{"role": "user"}]}'])
def test_a_file_that_is_no_conversation_changes_nothing(state, tmp_path, content):
    ask(state, "Hi")
    before = list(state.conversation.messages)
    (tmp_path / "other.json").write_text(content)
    assert "not a conversation" in react(state, f"/load {tmp_path / 'other.json'}")
    assert state.conversation.messages == before


def test_files_that_are_not_there_are_told_by_name(state, tmp_path):
    assert str(tmp_path / "none.json") in react(state, f"/load {tmp_path / 'none.json'}")
    assert str(tmp_path / "no") in react(state, f"/save {tmp_path / 'no' / 'chat.json'}")


def test_the_help_names_every_command(state):
    text = react(state, "/help")
    assert all(name in text for name in [*COMMANDS, "/exit"])


def test_what_begins_with_a_slash_and_is_a_sentence_is_a_message(state):
    assert react(state, "/etc/passwd is a file") is None
    assert "is not a command" in react(state, "/quit")


def test_the_saved_file_is_plain_messages(state, tmp_path):
    react(state, f"/save {tmp_path / 'chat.json'}")
    assert json.loads((tmp_path / "chat.json").read_text()) == {"messages": [{"role": "system", "content": "Be brief"}]}


TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
DELTA = OutputDelta(0, "", (1,))


class Thinker:
    """In the place of a model: thinks, calls a tool, and answers once it knows the result."""

    def __init__(self):
        self.asked = []

    def stream_chat(self, messages, params, **options):
        self.asked.append((messages, options))
        if messages[-1]["role"] == "tool":
            yield replace(DELTA, text=f"It is {messages[-1]['content']}.", finish_reason="stop")
        else:
            yield replace(DELTA, reasoning="Let me\nlook.")
            call = ToolCall(f"call-{len(self.asked)}", "weather", '{"city": "Oslo"}')
            yield replace(DELTA, tool_calls=(call,), finish_reason="tool_calls")


@pytest.fixture
def thinking(tmp_path):
    (tmp_path / "tools.json").write_text(json.dumps(TOOLS))
    state = ChatState(Conversation(Thinker(), PARAMS))
    assert "weather" in react(state, f"/tools {tmp_path / 'tools.json'}")
    return state


def test_a_tool_s_result_is_typed_and_answered(thinking, tmp_path):
    talk = thinking.conversation
    list(talk.ask("Weather?"))
    assert [call["function"]["name"] for call in talk.waiting_calls] == ["weather"]
    talk.add_result("sunny")
    assert "".join(delta.text for delta in talk.go_on()) == "It is sunny."
    assert [message["role"] for message in talk.messages] == ["user", "assistant", "tool", "assistant"]
    assert talk.messages[1]["reasoning_content"] == "Let me\nlook."
    assert talk.llm.asked[1][1] == {"tools": TOOLS}
    react(thinking, f"/save {tmp_path / 'chat.json'}")
    again = ChatState(Conversation(Thinker(), PARAMS))
    react(again, f"/load {tmp_path / 'chat.json'}")
    assert (again.conversation.messages, again.conversation.tools) == (talk.messages, TOOLS)


def test_undo_forgets_a_call_too_and_tools_can_be_taken_away(thinking):
    list(thinking.conversation.ask("Weather?"))
    react(thinking, "/undo")
    assert (thinking.conversation.waiting_calls, thinking.conversation.messages) == ([], [])
    assert "no tools" in react(thinking, "/tools none")
    list(thinking.conversation.ask("Weather?"))
    assert thinking.conversation.llm.asked[-1][1] == {}


@pytest.mark.parametrize("content", ["", "{}", "[3]", '[{"function": {}}]'])
def test_a_file_without_tools_changes_nothing(thinking, tmp_path, content):
    (tmp_path / "other.json").write_text(content)
    assert "no list of tools" in react(thinking, f"/tools {tmp_path / 'other.json'}")
    assert thinking.conversation.tools == TOOLS


@pytest.mark.parametrize("no_color", [False, True])
def test_thoughts_are_dim_and_colours_obey_no_color(monkeypatch, no_color):
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    console = Console(file=io.StringIO(), force_terminal=True, width=40, color_system="truecolor", legacy_windows=False)
    with MarkdownStream(console) as stream:
        for piece in ("Let ", "me\nlo", "ok."):
            stream.think(piece)
        stream.push("`Code` and text.")
    shown = console.file.getvalue()
    assert re.search(r"\x1b\[2;3mLet me", shown)
    assert re.search(r"\x1b\[2;3mlook\.", shown)
    coloured = re.search(r"\x1b\[[\d;]*(3[0-7]|4[0-7]|38;[25];|48;[25];)[\d;]*m", shown)
    assert bool(coloured) is not no_color


@pytest.mark.parametrize(
    ("text", "finished"),
    [
        ("a", ""),
        ("a\n\nb", "a\n\n"),
        ("```\na\n\nb", ""),
        ("```\na\n\n```\n\nb", "```\na\n\n```\n\n"),
        ("a\n\n", "a\n\n"),
    ],
)
def test_a_blank_line_ends_a_block_except_in_code(text, finished):
    assert split_blocks(text) == (finished, text[len(finished) :])


@pytest.mark.parametrize("size", [1, 3, 100])
def test_markdown_is_drawn_once_whatever_the_pieces(size):
    text = "# Title\n\nSome *words*.\n\n```py\nprint(1)\n\nprint(2)\n```\n\n- one\n- two\n"
    console = Console(file=io.StringIO(), force_terminal=False, width=40)
    with MarkdownStream(console) as stream:
        for start in range(0, len(text), size):
            stream.push(text[start : start + size])
    shown = console.file.getvalue()
    assert [shown.count(word) for word in ("Title", "words", "print(1)", "print(2)", "two")] == [1] * 5
    assert "*" not in shown
