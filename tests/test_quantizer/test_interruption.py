"""A run that is killed goes on where it was, and ends with the same bytes; one that is stopped says so."""

import signal
import subprocess
import sys
import time

import numpy as np
import pytest

KILLED = """
import os, signal, sys
from functools import partial
from pathlib import Path
import numpy as np
from quantizer.calibration.data import split
from quantizer.storage.resume import ResumeCache
from quantizer.allocation.resume import MeasurementLog
from quantizer.presets import make_recipe
from quantizer.flow import quantize

source, target, tokens, at, count = sys.argv[1:]

def told(before, name):
    def method(self, what, *others):
        print(name, what, flush=True)
        return before(self, what, *others)
    return method

def progress(doing, done, total):
    if doing.startswith("calibrating"):
        print("layer", done, flush=True)
    if doing.startswith(at) and done >= int(count):
        os.kill(os.getpid(), signal.SIGKILL)

MeasurementLog.add = told(MeasurementLog.add, "measured")
quantize(Path(source), Path(target), make_recipe(budget=6.0), text=split("t", np.load(tokens)), progress=progress)
"""
# During calibration, sensitivity, and GPTQ.
KILLS = [("calibrating", 1), ("measuring", 1), ("quantizing", 0), ("quantizing", 5)]


def run(*arguments):
    return subprocess.run([sys.executable, "-c", KILLED, *map(str, arguments)], capture_output=True, text=True)


def made(folder):
    """When each Hessian and quantized matrix was written."""
    files = [path for path in folder.rglob("*.np[yz]") if not path.name.startswith(("layer", "streams"))]
    return {path: path.stat().st_mtime_ns for path in files}


def test_a_run_killed_again_and_again_goes_on(tiny_bundle, tmp_path):
    tokens, target = tmp_path / "tokens.npy", tmp_path / "q"
    np.save(tokens, np.random.default_rng(3).integers(3, 320, (6, 48)))
    work, told, before = tmp_path / ".q.work", [], {}
    for at, count in KILLS:
        done = run(tiny_bundle, target, tokens, at, count)
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert not target.exists()
        assert before.items() <= made(work).items()  # nothing was made a second time
        before = made(work)
        told += done.stdout.splitlines()
    done = run(tiny_bundle, target, tokens, "never", 0)
    assert done.returncode == 0, done.stderr
    told += done.stdout.splitlines()
    assert len(set(told)) == len(told) == 2 + 9  # layers and matrices
    assert {path.name for path in tmp_path.iterdir()} == {"tokens.npy", "q"}
    assert run(tiny_bundle, tmp_path / "whole", tokens, "never", 0).returncode == 0
    for name in ("weights.bin", "prefill.onnx", "decode.onnx"):
        assert (target / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_an_interrupt_says_what_is_left(tiny_bundle, tmp_path):
    np.save(tmp_path / "tokens.npy", np.random.default_rng(3).integers(3, 320, (1000, 256)))  # seconds of calibration
    # A run of these tests in the background has SIGINT ignored, and a child would inherit that.
    listening = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    command = [sys.executable, "-c", f"{listening}; from runtime.cli.main import main; main()", "quantize", tiny_bundle]
    command += ["-o", tmp_path / "q", "--calibration", tmp_path / "tokens.npy", "--calibration-tokens", "256000"]
    process = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True)
    while not (tmp_path / ".q.work" / "log.json").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "nothing was written" in said
    assert f"{tmp_path / '.q.work'}" in "".join(said.split("\n"))
    assert {path.name for path in tmp_path.iterdir()} == {"tokens.npy", ".q.work"}
