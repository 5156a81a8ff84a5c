"""Real clients: each program of examples/clients runs against a server, and does what docs/clients.md says.

A program runs where its package is installed: in this environment, or in one of its own that `make clients` makes
below the folder ONNXLM_CLIENTS. What it showed goes to the file ONNXLM_CLIENTS_RESULTS, if that is set.
"""

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from chat_cases import FOLDER
from clients import CLIENTS, Client
from clients_page import page, version_of
from scripted import END, Scripted

from runtime import EngineOptions
from runtime.bundle.bundle import open_bundle
from runtime.ort.executor import OnnxExecutor
from runtime.text.tokenizer import Tokenizer

ROOT = Path(__file__).parents[2]
# What the model begins with, for each thing that a program tries; where a call or a schema begins, the grammar goes on.
HELLO, LOOP = [f"Four.{END}"], ['<think>\nWell.\n</think>\n\n<tool_call>\n{"name": "add"', f"It is four.{END}"]
SCRIPTS = {"chat": HELLO, "stream": HELLO, "tools": LOOP, "structured": [""], "responses": HELLO}
OTHERS = {"openai_agents": {"responses": LOOP}, "instructor": {"tools": [""]}}


@pytest.fixture(scope="module")
def scripted(make_checkpoint, make_bundle):
    checkpoint = make_checkpoint(max_position_embeddings=8192)
    config = checkpoint / "tokenizer_config.json"
    template = (FOLDER / "qwen3.jinja").read_text(encoding="utf-8")
    config.write_text(json.dumps(json.loads(config.read_text()) | {"chat_template": template}))
    bundle = make_bundle(checkpoint)
    executor = OnnxExecutor(open_bundle(bundle), "cpu", slots=1, threads=1)
    return bundle, Scripted(executor, Tokenizer(bundle / "tokenizer.json"))


@pytest.fixture(scope="module")
def server(scripted, start):
    return start(scripted[0], EngineOptions(max_concurrency=1, threads=1), executor=scripted[1])


def command_of(name: str, client: Client) -> list[str] | None:
    """How the program is started; None where the client is not installed."""
    folder = os.environ.get("ONNXLM_CLIENTS")
    own = Path(folder) / name if folder else None
    program = ROOT / "examples" / "clients" / client.program
    if client.node:
        if own is None or not (own / "node_modules").is_dir() or not shutil.which("node"):
            return None
        return ["node", shutil.copy(program, own / client.program)]  # Node looks for packages beside the program
    if own is not None and (own / "bin" / "python").exists():
        return [str(own / "bin" / "python"), str(program)]
    return [sys.executable, str(program)] if _is_here(client.module) else None


def _is_here(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of a package around it
        return False


def script_of(name: str) -> list[str]:
    """What the model says to each request of the program, in order."""
    own = SCRIPTS | OTHERS.get(name, {})
    return [answer for check in CLIENTS[name].checks for answer in own.get(check, [])]


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_does_what_the_table_says(name, server, scripted):
    client = CLIENTS[name]
    command = command_of(name, client)
    if command is None:
        pytest.skip(f"{client.title} is not installed")
    bundle, executor = scripted
    executor.answers[:] = script_of(name)
    command_line = [*command, server.url, "tiny", str(bundle)]
    done = subprocess.run(command_line, capture_output=True, text=True, timeout=280, check=False)
    shown = [line.split(":")[0].removeprefix("ok ") for line in done.stdout.splitlines() if line.startswith("ok ")]
    note_result(name, client, command, shown)
    assert done.returncode == 0, done.stdout + done.stderr
    assert shown == list(client.checks)


def note_result(name: str, client: Client, command: list[str], shown: list[str]) -> None:
    if target := os.environ.get("ONNXLM_CLIENTS_RESULTS"):
        path = Path(target)
        known = json.loads(path.read_text()) if path.exists() else {}
        known[name] = {"version": version_of(client, command), "works": shown}
        path.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


def test_the_page_of_clients_is_what_the_programs_showed():
    results = json.loads((ROOT / "docs" / "clients.json").read_text())
    assert (ROOT / "docs" / "clients.md").read_text() == page(CLIENTS, results), "run `make clients`"
