"""Options that would be ignored, and files that are not there, are errors before anything is loaded."""

import subprocess
import sys

import pytest
from click.testing import CliRunner

from runtime.bundle.bundle import new_bundle
from runtime.cli.main import main
from runtime.errors import BundleError


def call(*arguments):
    return CliRunner().invoke(main, ["quantize", *map(str, arguments)])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--bits", "4", "--calibration", "nofile.txt"], "--calibration has no effect"),
        (["--bits", "4", "--calibration", "self"], "--calibration has no effect"),
        (["--preset", "fast", "--calibration-tokens", "100"], "--calibration-tokens has no effect"),
        (["--method", "rtn", "--seed", "1"], "--seed has no effect"),
        (["--bits", "8", "--work", "w"], "--work has no effect"),
        (["--calibration", "text.txt", "--seed", "1"], "--seed has no effect"),
        (["--calibration", "nofile.txt"], "nofile.txt: no such file"),
        (["--bits", "4", "--kv", "int8", "--calibration", "nofile.txt"], "nofile.txt: no such file"),
        (["--bits", "4", "--fail-if", "kl>1", "--calibration", "."], ".: is a folder"),
    ],
)
def test_an_option_is_used_or_refused(options, message, tmp_path):
    done = call("no-bundle", "-o", tmp_path / "q", *options)
    assert done.exit_code == 1
    assert message in done.stderr
    assert not list(tmp_path.iterdir())


WRITING = """
import sys, time
from runtime.bundle.bundle import new_bundle
with new_bundle(sys.argv[1]):
    print("writing", flush=True)
    time.sleep(60)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="locks")
def test_the_second_of_two_runs_says_who_writes(tmp_path):
    target = tmp_path / "q"
    first = subprocess.Popen([sys.executable, "-c", WRITING, target], stdout=subprocess.PIPE, text=True)
    try:
        assert first.stdout.readline() == "writing\n"
        with pytest.raises(BundleError, match=f"process {first.pid} is writing it"), new_bundle(target):
            pass
    finally:
        first.kill()
        first.communicate()
    with new_bundle(target):  # its remains are in nobody's way
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["q"]
