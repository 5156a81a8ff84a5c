import json
import os
import pty
import select
import signal
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner

import runtime
from runtime.cli.chat.conversation import Conversation
from runtime.cli.main import main
from runtime.cli.terminal.streaming import Pace, show

PARAMS = runtime.SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(tiny_bundle):
    with runtime.LLM(tiny_bundle, options=runtime.EngineOptions(max_concurrency=1)) as llm:
        yield llm


@pytest.fixture
def run(tiny_bundle):
    def run(*arguments, text=None):
        return CliRunner().invoke(main, ["run", str(tiny_bundle), *arguments], input=text)

    return run


def test_an_answer_is_streamed_to_standard_output(run, llm):
    result = run("Hi", "--max-tokens", "8", "--temperature", "0", "--ignore-eos")
    assert result.exit_code == 0
    assert result.stdout == llm.chat([{"role": "user", "content": "Hi"}], PARAMS).text + "\n"


def test_raw_uses_no_template(run, llm):
    result = run("Hi", "--raw", "--max-tokens", "8", "--temperature", "0", "--ignore-eos")
    assert result.stdout == llm.generate("Hi", PARAMS).text + "\n"


def test_drafts_do_not_change_the_answer(run):
    options = ("--raw", "--max-tokens", "40", "--temperature", "0", "--ignore-eos")
    assert run("ab ab ab ab", *options, "--speculation", "8").stdout == run("ab ab ab ab", *options).stdout


def test_the_system_message_is_used(run, llm):
    result = run("Hi", "--system", "Be brief", "--max-tokens", "8", "--temperature", "0", "--ignore-eos")
    chat = [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "Hi"}]
    assert result.stdout == llm.chat(chat, PARAMS).text + "\n"


def test_the_prompt_can_come_from_standard_input(run):
    options = ("--raw", "--max-tokens", "4", "--seed", "1", "--temperature", "1")
    assert run("-", *options, text="Hi").stdout == run("Hi", *options).stdout


def test_json_is_one_object(run):
    result = run("Hi", "--raw", "--json", "--max-tokens", "3", "--logprobs", "2", "--ignore-eos", "-n", "2")
    answer = json.loads(result.stdout)
    assert len(answer["token_ids"]) == 3
    assert [len(entry["top"]) for entry in answer["logprobs"]] == [2, 2, 2]
    assert len(answer["alternatives"]) == 1


def test_the_seed_of_an_answer_repeats_it(run):
    options = ("Hi", "--raw", "--json", "--max-tokens", "8", "--temperature", "2")
    first = json.loads(run(*options).stdout)
    assert json.loads(run(*options, "--seed", str(first["seed"])).stdout)["token_ids"] == first["token_ids"]


def test_several_answers_are_numbered(run):
    result = run("Hi", "--raw", "-n", "2", "--max-tokens", "2", "--temperature", "1")
    assert "[1] " in result.stdout
    assert "[2] " in result.stdout


def test_stats_go_to_standard_error(run):
    result = run("Hi", "--raw", "--max-tokens", "5", "--ignore-eos", "--stats")
    assert "5 tokens, " in result.stderr
    assert "finish reason length" in result.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["Hi", "--temperature", "nan"], "temperature must be a number"),
        (["Hi", "--logit-bias", "x"], "ID=BIAS"),
        (["Hi", "--logit-bias", "9999=1", "--raw"], "outside the vocabulary"),
        (["Hi", "--raw", "--system", "x"], "--system has no effect beside --raw"),
        (["Hi", "--logprobs", "1"], "needs --json"),
        (["--json"], "give one"),
        (["a" * 400, "--raw"], "context"),
        (["", "--raw"], "empty"),
        (["Hi", "--provider", "cuda"], "cuda"),
        ([], "standard input is empty"),
        (["--input", "x"], "--input needs --output FILE"),
    ],
)
def test_a_refusal_is_one_line_and_a_failure(run, options, words):
    result = run(*options)
    assert result.exit_code != 0
    assert words.lower() in result.stderr.lower()
    assert "Traceback" not in result.stderr


def test_every_sampling_parameter_has_an_option(run):
    words = (
        "--max-tokens 9 --temperature 0.5 --top-k 9 --top-p 0.9 --min-p 0.1 --seed 3 --stop xyz --stop-token-id 5 "
        "--min-tokens 2 --ignore-eos --repetition-penalty 1.1 --presence-penalty 0.1 --frequency-penalty 0.1 "
        "--logit-bias 7=-100 --logit-bias 8=1.5"
    )
    assert run("Hi", "--raw", *words.split()).exit_code == 0


def test_a_chat_remembers_until_reset(run):
    options = ("--max-tokens", "4", "--temperature", "0", "--ignore-eos")
    first, second, again = run(*options, text="Hi\nHi\n/reset\nHi\n").stdout.splitlines()
    assert first == again
    assert first != second


def test_a_chat_takes_several_lines_and_knows_its_commands(run, llm):
    result = run(
        "--max-tokens", "8", "--temperature", "0", "--ignore-eos", text='"""a\nb"""\n/nonsense\n/help\n/exit\nHi\n'
    )
    assert result.stdout == llm.chat([{"role": "user", "content": "a\nb"}], PARAMS).text + "\n"
    assert "/nonsense is not a command" in result.stderr


def test_a_chat_survives_a_message_that_is_too_long(run):
    result = run("--max-tokens", "4", "--ignore-eos", text="a" * 300 + "\nHi\n")
    assert "Error: " in result.stderr
    assert len(result.stdout.splitlines()) == 1
    assert result.exit_code == 0


def test_what_was_stopped_stays_as_far_as_it_came(llm):
    conversation = Conversation(llm, PARAMS, "Be brief")
    deltas = conversation.ask("Hi")
    seen = next(deltas).text + next(deltas).text
    deltas.close()
    assert conversation.messages[1:] == [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": seen}]
    again = "".join(delta.text for delta in conversation.ask("And?"))
    assert again == llm.chat([*conversation.messages[:3], {"role": "user", "content": "And?"}], PARAMS).text


def test_a_refused_message_is_not_remembered(llm):
    conversation = Conversation(llm, PARAMS)
    with pytest.raises(runtime.PromptTooLongError):
        conversation.ask("a" * 400)
    assert conversation.messages == []


def test_ctrl_c_stops_the_answer_and_cancels_it(llm):
    closed = []

    def deltas():
        try:
            yield runtime.OutputDelta(0, "a")
            raise KeyboardInterrupt
        finally:
            closed.append(True)

    assert not show(deltas(), Pace())
    assert closed == [True]


class Terminal:
    """`onnxlm run` in a terminal of its own."""

    def __init__(self, *arguments):
        self.screen, inside = pty.openpty()
        # A run of these tests in the background has SIGINT ignored, and a child would inherit that.
        listening = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
        code = f"{listening}; from runtime.cli.main import main; main()"
        command = [sys.executable, "-c", code, "run", *arguments]
        self.process = subprocess.Popen(command, stdin=inside, stdout=inside, stderr=inside, start_new_session=True)
        os.close(inside)
        self.seen = ""

    def wait_for(self, text, seconds=60, otherwise=lambda: None):
        end = time.monotonic() + seconds
        while text not in self.seen:
            assert time.monotonic() < end, self.seen
            if select.select([self.screen], [], [], 3)[0]:
                self.seen += os.read(self.screen, 4096).decode(errors="replace")
            else:
                otherwise()
        before, _, self.seen = self.seen.partition(text)
        return before

    def wait_for_more(self):
        self.seen = self.seen or os.read(self.screen, 1).decode(errors="replace")

    def type(self, text):
        os.write(self.screen, text.encode())

    def ctrl_c(self):
        self.process.send_signal(signal.SIGINT)

    def leave(self):
        """The exit code."""
        try:
            for _ in range(10):
                try:
                    return self.process.wait(3)
                except subprocess.TimeoutExpired:
                    self.ctrl_c()
            return None
        finally:
            self.process.kill()
            os.close(self.screen)


@pytest.fixture(scope="module")
def patient_bundle(make_checkpoint, make_bundle):
    """A model whose answers are long enough to be interrupted for certain."""
    return make_bundle(make_checkpoint(max_position_embeddings=60_000))


def test_ctrl_c_in_a_terminal(patient_bundle):
    terminal = Terminal(str(patient_bundle), "--max-tokens", "50000", "--ignore-eos")
    terminal.wait_for("> ")
    terminal.type("Hi\n")
    terminal.wait_for("Hi\r\n")
    terminal.wait_for_more()
    terminal.ctrl_c()  # stops the answer
    terminal.wait_for("> ")
    terminal.type("/reset\n")
    terminal.wait_for("A new conversation.")
    terminal.wait_for("> ")
    terminal.ctrl_c()
    terminal.wait_for("leaves.", otherwise=terminal.ctrl_c)  # readline can miss a signal just before it waits
    terminal.ctrl_c()
    assert terminal.leave() == 0


def test_ctrl_c_ends_a_single_answer(patient_bundle):
    terminal = Terminal(str(patient_bundle), "Hi", "--raw", "--max-tokens", "50000", "--ignore-eos", "--stats")
    terminal.wait_for_more()
    terminal.ctrl_c()
    terminal.wait_for("finish reason cancelled")
    assert terminal.leave() == 130
