"""The commands of a chat in the terminal, and how its answers are drawn."""

import io
import json

import pytest
from rich.console import Console

import runtime
from runtime.cli.chat_commands import COMMANDS, ChatState, react
from runtime.cli.conversation import Conversation
from runtime.cli.markdown import MarkdownStream, split_blocks

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
