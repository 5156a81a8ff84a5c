"""The server as a process of its own: signals, its log, and its options."""

import json
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

COMMAND = [sys.executable, "-c", "from runtime.cli.main import main; main()", "serve"]
LONG = {"messages": [{"role": "user", "content": "a secret"}], "max_tokens": 1200, "ignore_eos": True, "stream": True}


@contextmanager
def process(log, *arguments):
    with log.open("wb") as stderr:
        started = subprocess.Popen([*COMMAND, *map(str, arguments)], stderr=stderr)
        try:
            yield started
        finally:
            started.kill()
            started.wait()


def address(started, log):
    end = time.monotonic() + 60
    while not (found := re.search(r"at (http://[\d.]+:(\d+))", log.read_text())):
        assert started.poll() is None, log.read_text()
        assert time.monotonic() < end
        time.sleep(0.02)
    return found[1]


def wait_until_draining(url):
    end = time.monotonic() + 60
    while httpx.get(f"{url}/ready", timeout=60).status_code == 200:
        assert time.monotonic() < end
        time.sleep(0.01)


def until_cut(received):
    """What comes until the connection ends, in order or not."""
    with suppress(httpx.RemoteProtocolError):
        yield from received


def test_a_signal_lets_requests_finish_and_takes_no_new_ones(chat_bundle, tmp_path):
    log = tmp_path / "log"
    with process(log, chat_bundle, "--port", 0, "--log-format", "json", "--threads", 1) as started:
        url = address(started, log)
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=LONG, timeout=60) as answer:
            lines = answer.iter_lines()
            next(lines)
            started.send_signal(signal.SIGTERM)
            wait_until_draining(url)
            refused = httpx.post(f"{url}/v1/chat/completions", json=LONG)
            assert httpx.get(f"{url}/health").status_code == 200
            rest = list(lines)
        assert started.wait(60) == 0
    assert rest[-2] == "data: [DONE]"
    assert '"finish_reason":"length"' in rest[-4]
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    assert {entry.get("generated_tokens") for entry in entries} >= {1200, 0}
    assert "secret" not in log.read_text()


def test_a_second_signal_ends_it(chat_bundle, tmp_path):
    log = tmp_path / "log"
    with process(log, chat_bundle, "--port", 0, "--threads", 1, "--max-concurrency", 1) as started:
        url = address(started, log)
        many = LONG | {"n": 32, "max_tokens": 2000}  # one after the other: far more than can end meanwhile
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=many, timeout=60) as answer:
            received = answer.iter_raw()
            next(received)
            started.send_signal(signal.SIGINT)
            wait_until_draining(url)
            assert started.poll() is None
            started.send_signal(signal.SIGTERM)
            rest = b"".join(until_cut(received))
            started.wait(60)
    assert b"[DONE]" not in rest
    assert "path=/v1/chat/completions" in log.read_text()  # the log is written to its end


def test_more_files_may_be_open_than_a_shell_allows(chat_bundle, tmp_path):
    resource = pytest.importorskip("resource")
    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    log = tmp_path / "log"
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        with process(log, chat_bundle, "--port", 0) as started:
            resource.setrlimit(resource.RLIMIT_NOFILE, (before, hard))
            address(started, log)
            line = re.search(r"Max open files +(\d+)", Path(f"/proc/{started.pid}/limits").read_text())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, hard))
    assert int(line[1]) == min(hard, 65536)


def test_after_a_kill_it_starts_again_at_the_same_port(chat_bundle, tmp_path):
    port, before = 0, sorted(path.name for path in chat_bundle.iterdir())
    for place in range(2):
        log = tmp_path / f"log{place}"
        with process(log, f"m={chat_bundle}", "--port", port) as started:
            url = address(started, log)
            port = url.rpartition(":")[2]
            assert httpx.get(f"{url}/v1/models").json()["data"][0]["id"] == "m"
            started.send_signal(signal.SIGKILL)
            assert started.wait(10) == -signal.SIGKILL
    assert sorted(path.name for path in chat_bundle.iterdir()) == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--api-key-file", "nothing"], "nothing: cannot be read"),
        (["--max-queue", "-1"], "max_queue must be"),
        (["--kv-memory", "lots"], "not a size"),
    ],
)
def test_wrong_options_are_one_line(chat_bundle, arguments, words, runner):
    done = runner([str(chat_bundle), *arguments])
    assert done.exit_code != 0
    assert words in done.output


def test_two_bundles_of_one_name_are_refused(chat_bundle, runner):
    done = runner([str(chat_bundle), str(chat_bundle)])
    assert "Two bundles are called 'bundle'" in done.output


@pytest.fixture
def runner():
    from click.testing import CliRunner

    from runtime.cli.main import main

    return lambda arguments: CliRunner().invoke(main, ["serve", *arguments])
