"""A server on the fake GPU, as a process: what it says while it works, and when the GPU breaks."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

ONNXLM = [sys.executable, "-c", "from runtime.cli.main import main; main()"]


@contextmanager
def served(bundle: Path, port: int, **environment: str) -> "Iterator[tuple[httpx.Client, subprocess.Popen[str]]]":
    command = [*ONNXLM, "serve", str(bundle), "--port", str(port), "--max-concurrency", "2"]
    with subprocess.Popen(command, env=os.environ | environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
                yield client, process
        finally:
            process.kill()


def until_ready(client: httpx.Client) -> None:
    for _ in range(300):
        try:
            if client.get("/ready").status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(0.1)
    raise AssertionError("the server did not start")


def ask(client: httpx.Client) -> httpx.Response:
    return client.post("/v1/completions", json={"prompt": [5, 6, 7], "max_tokens": 8, "ignore_eos": True})


def test_it_answers_and_ends_when_the_gpu_breaks(cuda_bundle: Callable[..., Path], free_tcp_port: int) -> None:
    with served(cuda_bundle(), free_tcp_port, FAKECUDA_FAIL="sync:30") as (client, process):
        until_ready(client)
        codes = [ask(client).status_code for _ in range(6) if process.poll() is None]
        assert codes[0] == 200
        assert process.wait(30) == 75
        assert process.stderr is not None
        assert "restart" in process.stderr.read()


def test_doctor_runs_a_graph_on_the_gpu_and_names_what_fails(library: Any) -> None:
    def cuda(**environment: str) -> Any:
        done = subprocess.run(
            [*ONNXLM, "doctor", "--quick", "--json"], env=os.environ | environment, capture_output=True, text=True
        )
        return next(p["problem"] for p in json.loads(done.stdout)["providers"] if p["name"] == "cuda")

    assert cuda() is None
    assert "CUDA" in cuda(FAKECUDA_FAIL="copy:1")
    assert "sees no GPU" in cuda(CUDA_VISIBLE_DEVICES="-1")


@pytest.mark.parametrize("missing", ["libcuda.so.1", "libcublas.so.13", "libcudart.so.13"])
def test_a_missing_library_is_named(library: Any, tmp_path: Path, missing: str) -> None:
    folder = Path(os.environ["LD_LIBRARY_PATH"].split(":")[0])
    for file in folder.glob("*.so.*"):
        if file.name != missing:
            (tmp_path / file.name).symlink_to(file)
    done = subprocess.run(
        [*ONNXLM, "doctor", "--quick", "--json"],
        env=os.environ | {"LD_LIBRARY_PATH": str(tmp_path)}, capture_output=True, text=True,
    )  # fmt: skip
    assert missing in done.stdout
