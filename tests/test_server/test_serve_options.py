"""`onnxlm serve` as a process, with the options for life behind a proxy and beside other models."""

import re
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

COMMAND = [sys.executable, "-m", "runtime", "serve"]
PROXY = ["--allowed-hosts", "chat.example.com, *.inner.example,127.0.0.1", "--trusted-proxies", "127.0.0.0/8"]


@pytest.fixture(scope="module")
def available():
    lines = Path("/proc/meminfo").read_text().splitlines() if sys.platform == "linux" else []
    found = [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
    return found[0] if found else pytest.skip("looks into /proc")


@pytest.fixture(scope="module")
def served(chat_bundle, available, tmp_path_factory):
    """Two models at all interfaces behind a proxy's path, without keys: the URL, and the log."""
    log = tmp_path_factory.mktemp("serve") / "log"
    models = [f"one={chat_bundle}", f"two={chat_bundle}", "--port", "0", "--threads", "1"]
    with log.open("wb") as stderr:
        arguments = [*models, "--host", "0.0.0.0", "--root-path", "/llm", *PROXY]
        process = subprocess.Popen([*COMMAND, *arguments], stderr=stderr)
        try:
            end = time.monotonic() + 60
            while not (found := re.search(r"at http://0\.0\.0\.0:(\d+)", log.read_text())):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < end
                time.sleep(0.02)
            yield f"http://127.0.0.1:{found[1]}", log.read_text()
        finally:
            process.kill()
            process.wait()


def get(served, path, **headers):
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.get(served[0] + path, headers=named, timeout=30)


def test_open_to_all_without_keys_is_a_warning(served):
    assert "WARNING" in served[1]
    assert "everybody who reaches this machine may use the server: give --api-key-file" in served[1]


def test_hosts_are_those_of_the_option(served):
    answers = [get(served, "/v1/models", host=host) for host in ("chat.example.com", "a.inner.example", "evil.example")]
    assert [answer.status_code for answer in answers] == [200, 200, 403]
    assert "--allowed-hosts" in answers[2].json()["error"]["message"]


def test_a_trusted_proxy_s_headers_count(served):
    page = {"host": "127.0.0.1", "origin": "https://chat.example.com", "x_forwarded_host": "chat.example.com"}
    assert get(served, "/v1/models", **page).status_code == 200
    assert get(served, "/v1/models", **page | {"x_forwarded_host": "evil.example"}).status_code == 403


def test_everything_is_under_the_root_path_too(served):
    assert get(served, "/llm/v1/models").json() == get(served, "/v1/models").json()
    assert 'src="page/page.js"' in get(served, "/llm/").text
    body = {"model": "one", "prompt": "Hi", "max_tokens": 2}
    assert httpx.post(served[0] + "/llm/v1/completions", json=body, timeout=30).status_code == 200


def test_models_share_the_memory(served, available):
    """Each has an equal share of the half that all may take, and no more."""
    sizes = [model["kv_bytes"] for model in get(served, "/status").json()["models"]]
    assert len(set(sizes)) == 1
    assert available / 8 < sum(sizes) < 1.1 * available / 2  # other processes take and give meanwhile
