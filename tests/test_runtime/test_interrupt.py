"""Ctrl-C while the main thread, or another one, is inside a library."""

import signal
import subprocess
import sys
import time

import pytest

PROGRAM = """
import signal, sys, time
from concurrent.futures import ThreadPoolExecutor
import numpy as np
from runtime.bundle.bundle import new_bundle
from runtime.cli.terminal.interrupt import stopping_promptly
from runtime.cli.main import main

signal.signal(signal.SIGINT, signal.default_int_handler)

@main.command("compute")
def compute():
    large = np.random.default_rng(0).random((3000, 3000))
    with stopping_promptly(lambda: " Layers are kept in w."), new_bundle(sys.argv[2]):
        print("computing", flush=True)
        for _ in range(10):
            ThreadPoolExecutor(1).submit(np.linalg.eigvals, large).result() if THREAD else np.linalg.eigvals(large)

compute.main([], standalone_mode=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("thread", [False, True])
def test_an_interrupt_ends_a_computation_and_leaves_nothing(thread, tmp_path):
    program = PROGRAM.replace("THREAD", str(thread))
    command = [sys.executable, "-c", program, "compute", str(tmp_path / "q")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "computing\n"
    time.sleep(0.3)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert time.monotonic() - began < 2
    assert process.returncode == 130
    assert said == "Error: interrupted; nothing was written. Layers are kept in w.\n"
    assert not list(tmp_path.iterdir())
