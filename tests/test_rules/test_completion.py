"""The shells complete commands, options and values, by the lines that the documents name."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

DOCUMENT = Path(__file__).parents[2] / "docs" / "index.md"
COMMAND = "from runtime.cli.main import main; main(prog_name='onnxlm')"


def shell_gets(**environment: str) -> str:
    done = subprocess.run([sys.executable, "-c", COMMAND], env=os.environ | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_script(shell):
    assert f"_ONNXLM_COMPLETE={shell}_source onnxlm" in DOCUMENT.read_text()
    assert f"_ONNXLM_COMPLETE={shell}_complete" in shell_gets(_ONNXLM_COMPLETE=f"{shell}_source")


@pytest.mark.parametrize(
    ("words", "completed"),
    [("onnxlm qu", {"quantize", "quantize-kv"}), ("onnxlm quantize --pres", {"--preset"}),
     ("onnxlm quantize --preset bal", {"balanced"}), ("onnxlm run --prov", {"--provider"})],
)  # fmt: skip
def test_words_are_completed(words, completed):
    place = str(len(words.split()) - 1)
    out = shell_gets(_ONNXLM_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=place)
    assert {line.partition(",")[2] for line in out.splitlines()} == completed
