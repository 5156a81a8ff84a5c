"""Typical mistakes at the command line end in one line that helps, and in an exit code."""

import errno
import json
import logging
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from runtime.cli.main import COMMANDS, main
from runtime.cli.terminal.progress import PhaseLines

ONNXLM = [sys.executable, "-c", "from runtime.cli.main import main; main()"]


def a_command_that(action, monkeypatch):
    @click.command("fails")
    def fails():
        action()

    monkeypatch.setattr(sys.modules[__name__], "fails", fails, raising=False)
    monkeypatch.setitem(COMMANDS, "fails", (__name__, "fails", "cpu", "Fails."))
    return CliRunner().invoke(main, ["fails"])


@pytest.mark.parametrize(("typed", "meant"), [("quatize", "quantize"), ("exprot", "export"), ("sevre", "serve")])
def test_a_misspelled_command_is_told_what_it_may_have_been(typed, meant):
    done = CliRunner().invoke(main, [typed])
    assert done.exit_code == 2
    assert f"Did you mean '{meant}'?" in done.output


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_can_be_quiet_and_verbose(name):
    text = CliRunner().invoke(main, [name, "--help"]).output
    assert "--quiet" in text
    assert "--verbose" in text


@pytest.mark.parametrize(("code", "advice"), [(errno.ENOSPC, "disk is full"), (errno.EACCES, "may not write")])
def test_an_error_of_the_system_names_the_path_and_what_to_do(code, advice, monkeypatch):
    def action():
        raise OSError(code, "No luck", "/some/where")

    done = a_command_that(action, monkeypatch)
    assert done.exit_code == 1
    assert done.output.startswith("Error: /some/where: No luck. ")
    assert advice in done.output


def test_ctrl_c_exits_with_130(monkeypatch):
    def action():
        raise KeyboardInterrupt

    assert a_command_that(action, monkeypatch).exit_code == 130


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("words", [["export", "--list"], ["--help"], ["--version"], ["run", "--help"]])
def test_a_full_disk_behind_standard_output_is_an_error(words):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*ONNXLM, *words], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].startswith("Error: No space left on device.")


def test_without_a_terminal_a_phase_is_a_line_and_every_half_minute_another():
    lines, now = [], [0.0]
    show = PhaseLines(lines.append, clock=lambda: now[0])
    for seconds, phase, done in [(0, "reading", 0), (10, "reading", 1), (31, "reading", 2), (40, "coding", 0)]:
        now[0] = seconds
        show(phase, done, 4)
    assert lines == ["reading", "reading: 50%, about 31 s left", "coding"]


def test_verbose_logs_more_and_quiet_less(monkeypatch):
    seen = []
    monkeypatch.setattr(logging.getLogger("onnxlm"), "setLevel", seen.append)
    for flag in ("-q", "-v", "-vv"):
        CliRunner().invoke(main, ["inspect", "nothing", flag])
    assert seen == [logging.ERROR, logging.INFO, logging.DEBUG]


@pytest.mark.parametrize(
    ("model_type", "what"),
    [("bert", "an encoder"), ("siglip", "a vision model"), ("whisper", "an encoder with"), ("x", "")],
)
def test_a_model_of_another_kind_is_called_what_it_is(model_type, what, tmp_path):
    (tmp_path / "config.json").write_text(f'{{"model_type": "{model_type}"}}')
    (tmp_path / "model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    done = CliRunner().invoke(main, ["export", str(tmp_path), "-o", str(tmp_path / "out")])
    assert done.exit_code == 1
    assert what in done.output
    listed = done.output.rpartition("Supported: ")[2].strip(" .\n").split(", ")
    assert listed == sorted(listed)
    assert "llama" in listed


def test_a_context_beyond_the_model_s_is_refused(tiny_bundle):
    done = CliRunner().invoke(main, ["run", str(tiny_bundle), "hi", "--raw", "--context", "100000"])
    assert done.exit_code == 1
    assert "context 100000 is more than the 256 tokens" in done.output


def test_a_file_of_requests_that_is_none_says_why_on_the_screen(tiny_bundle, tmp_path):
    (tmp_path / "in.jsonl").write_text("just text\nmore text\n")
    options = ["--input", str(tmp_path / "in.jsonl"), "--output", str(tmp_path / "out.jsonl")]
    done = CliRunner().invoke(main, ["run", str(tiny_bundle), *options])
    assert done.exit_code == 1
    assert "The first that failed: line 1: " in done.output


def test_a_link_to_a_bundle_keeps_its_own_name(tiny_bundle, tmp_path):
    from runtime.cli.source import name_of

    (tmp_path / "production").symlink_to(tiny_bundle)
    assert name_of(tmp_path / "production") == "production"


@pytest.mark.parametrize("command", ["run", "serve"])
def test_an_altered_weight_is_found_at_the_start_where_asked_for(command, make_bundle, tiny_checkpoint):
    bundle = make_bundle(tiny_checkpoint)
    content = bytearray((bundle / "weights.bin").read_bytes())
    content[5000] ^= 1
    (bundle / "weights.bin").write_bytes(content)
    done = CliRunner().invoke(main, [command, str(bundle), "--verify", *(["hi"] if command == "run" else [])])
    assert done.exit_code == 1
    assert "weights.bin was altered" in done.output


def test_the_list_of_families_is_data_too():
    for arguments in (["--list", "--json"], ["--json", "--list"]):
        done = CliRunner().invoke(main, ["export", *arguments])
        assert {family["model_type"] for family in json.loads(done.output)} >= {"llama", "qwen3"}


@pytest.mark.parametrize(
    "words", [["package", "BUNDLE", "-o", "OUT"], ["export", "BUNDLE", "-o", "OUT", "--format", "genai"]]
)
def test_a_file_that_may_not_grow_is_named(tiny_bundle, tmp_path, words):
    out = tmp_path / "out"
    line = [{"BUNDLE": str(tiny_bundle), "OUT": str(out)}.get(word, word) for word in words]
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)); {ONNXLM[2]}"
    done = subprocess.run([sys.executable, "-c", limited, *line], capture_output=True, text=True, check=False)
    assert (done.returncode, f"Error: {out}: File too large. Files may not grow" in done.stderr) == (1, True)
    assert not list(tmp_path.iterdir())
