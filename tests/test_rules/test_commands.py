"""Every command explains itself, and every command line that we print anywhere can be parsed."""

import re
import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from runtime.cli.main import COMMANDS, main

ROOT = Path(__file__).parents[2]
PAGES = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").glob("*.md"))]


def help_of(*names: str) -> str:
    done = CliRunner().invoke(main, [*names, "--help"])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself_with_an_example(name):
    text = help_of(name)
    assert "Example" in text
    assert f"  onnxlm {name}" in text


def test_the_list_of_commands_names_each():
    text = help_of()
    assert all(f"\n  {name} " in text for name in COMMANDS)


def test_a_percent_sign_in_the_help_is_a_percent_sign(monkeypatch):
    monkeypatch.setitem(COMMANDS, "discount", ("runtime.cli.run", "run", "cpu", "Saves 50 % of %s and %(x)d."))
    assert "Saves 50 % of %s and %(x)d." in help_of()


def test_a_typing_error_is_a_usage_error():
    done = CliRunner().invoke(main, ["inspekt"])
    assert done.exit_code == 2
    assert "No such command 'inspekt'" in done.output


@pytest.mark.parametrize("name", ["run", "bench", "inspect"])
def test_an_error_of_ours_is_one_line_and_an_exit_code(name, tmp_path):
    done = CliRunner().invoke(main, [name, str(tmp_path / "nothing"), *(["hello"] if name == "run" else [])])
    assert done.exit_code == 1
    assert done.output.startswith("Error: ")
    assert "no such folder" in done.output


def documented() -> list[tuple[str, str]]:
    """Every line that starts the command, wherever a user may read it."""
    texts = {
        name: (ROOT / name).read_text() for name in ["README.md", "CONTRIBUTING.md", "FORMAT.md", "Makefile", *PAGES]
    }
    texts |= {f"{name} --help": help_of(name) for name in COMMANDS}
    lines = [(where, line.strip()) for where, text in texts.items() for line in text.splitlines()]
    return [(where, line) for where, line in lines if re.match(r"(\$\(BIN\)/)?onnxlm \w", line)]


@pytest.mark.parametrize(("where", "line"), documented())
def test_a_documented_command_line_can_be_parsed(where, line):
    _, name, *arguments = shlex.split(line, comments=True)
    context = click.Context(main)
    command = main.get_command(context, name)
    assert command is not None, f"{where}: no command {name}"
    command.make_context(name, list(arguments), parent=context)


def test_there_is_something_to_parse():
    assert {where for where, _ in documented()} >= {"README.md", "Makefile"}
