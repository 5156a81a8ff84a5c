"""Hosts, origins and paths: behind proxies, against DNS rebinding, and on sockets of every kind."""

import socket
import subprocess
import sys

import httpx
import pytest

from runtime.errors import OptionError
from runtime.server.listener import Listener
from runtime.server.options import ServerOptions

KEYS, METRICS = ("first-key-1234",), ("metrics-key-1",)


@pytest.fixture(scope="module")
def proxied(start, chat_bundle):
    return start(
        chat_bundle,
        allowed_hosts=("chat.example.com", "*.Inner.example.", "127.0.0.1:80", "fd00::1"),
        trusted_proxies=("127.0.0.0/8",),
        root_path="/llm/",
    )


def status(server, path="/v1/models", **headers):
    return httpx.get(server.url + path, headers={name.replace("_", "-"): v for name, v in headers.items()}).status_code


@pytest.mark.parametrize(
    "host",
    [
        "chat.example.com",
        "CHAT.example.com:8443",
        "a.inner.example",
        "127.0.0.1:1",
        "chat.example.com.",
        "[fd00:0::1]:8",
    ],
)
def test_known_hosts_are_answered(proxied, host):
    assert status(proxied, host=host) == 200
    assert status(proxied, host=host, origin=f"https://{host}") == 200


@pytest.mark.parametrize("host", ["evil.example.com", "chat.example.com.evil", "inner.example", "[::2]"])
def test_other_hosts_are_refused(proxied, host):
    assert status(proxied, host=host) == 403
    assert status(proxied, "/health", host=host) == 200


def test_the_usual_port_may_be_written_or_not(proxied):
    assert status(proxied, host="chat.example.com:443", origin="https://chat.example.com") == 200
    assert status(proxied, host="chat.example.com", origin="http://chat.example.com:80") == 200
    assert status(proxied, host="chat.example.com:8443", origin="https://chat.example.com") == 403
    assert status(proxied, host="chat.example.com", origin="null") == 403


def test_one_of_two_headers_may_hold_a_dummy(start, chat_bundle):
    server = start(chat_bundle, api_keys=KEYS)
    assert status(server, x_api_key="dummy", authorization=f"bearer  {KEYS[0]}") == 200
    assert status(server, x_api_key=KEYS[0], authorization="Bearer dummy") == 200
    for sent in ({"x_api_key": ""}, {"authorization": "Bearer"}, {"authorization": KEYS[0]}, {"x_api_key": "dummy"}):
        assert status(server, **sent) == 401


def test_a_trusted_proxy_tells_the_host(proxied, server):
    page = {"origin": "https://chat.example.com", "x_forwarded_host": "chat.example.com"}
    assert status(proxied, **page) == 200
    assert status(proxied, **page | {"x_forwarded_host": "evil.example.com"}) == 403
    assert status(server, **page) == 403  # which trusts nobody


def test_browsers_tell_whose_page_it_is(server):
    assert status(server, origin="https://chat.example.com", sec_fetch_site="same-origin") == 200
    for site in ("cross-site", "same-site", "none"):
        assert status(server, origin=server.url, sec_fetch_site=site) == 403


@pytest.mark.parametrize("path", ["/v1/models", "/llm/v1/models", "/llm/", "/llm/page/page.js", "/llm/health"])
def test_a_path_of_the_proxy_is_cut_off_by_it_or_here(proxied, path):
    assert status(proxied, path) == 200


def test_the_path_itself_leads_to_where_relative_links_work(proxied):
    answer = httpx.get(proxied.url + "/llm")
    assert (answer.status_code, answer.headers["location"]) == (307, "/llm/")
    page = httpx.get(proxied.url + "/llm/").text
    assert 'src="page/page.js"' in page
    for script in ("chat.js", "status.js", "events.js", "page.js"):
        assert '"/' not in httpx.get(f"{proxied.url}/page/{script}").text


def test_keys_for_metrics_open_nothing_else(start, chat_bundle, request_log):
    server = start(chat_bundle, api_keys=KEYS, metrics_keys=METRICS)
    sent = {"authorization": f"Bearer {METRICS[0]}"}
    assert status(server, "/metrics", **sent) == 200
    assert status(server, "/v1/models", **sent) == 401
    assert status(server, "/metrics") == 401
    assert status(server, "/nothing/like/this", x_api_key="wrong") == 401
    text = httpx.get(server.url + "/metrics", headers=sent).text
    assert 'onnxlm_http_requests_total{path="other",status="401"} 1.0' in text
    assert 'onnxlm_http_requests_total{path="/v1/models",status="401"} 1.0' in text
    assert [(line["status"], line["client"]) for line in request_log][:3] == [(401, "127.0.0.1")] * 3


def test_metrics_have_a_port_of_their_own(server):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server.app.state.service.metrics.listen("127.0.0.1", port)
    assert "onnxlm_num_requests_running" in httpx.get(f"http://127.0.0.1:{port}/metrics").text
    with pytest.raises(OptionError, match="--metrics-port"):
        server.app.state.service.metrics.listen("127.0.0.1", port)


def test_the_log_names_the_field_of_a_400(http, request_log):
    http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "x"}], "top_p": 7})
    end = [line for line in request_log if line.get("status") == 400]
    assert end[0]["param"] == "top_p"


def test_every_address_takes_both_families():
    with Listener("::", 0) as listener:
        listener.socket.listen()
        port = listener.socket.getsockname()[1]
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, port), timeout=5).close()
        assert (listener.open_to_all, listener.loopback) == (True, False)


def test_a_port_in_use_is_an_error_that_says_so():
    with Listener("127.0.0.1", 0) as listener:
        port = listener.socket.getsockname()[1]
        with pytest.raises(OptionError, match=f"port {port} is in use"):
            Listener("127.0.0.1", port)
    with pytest.raises(OptionError, match=r"--host no\.such\.host\.invalid"):
        Listener("no.such.host.invalid", 0)


def test_a_unix_socket_comes_and_goes(tmp_path):
    path = tmp_path / "s"
    with Listener("", 0, path), pytest.raises(OptionError, match="in use"):
        Listener("", 0, path)
    assert not path.exists()
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(path))
    stale.close()
    with Listener("", 0, path) as listener:
        assert listener.loopback
    path.write_text("no socket")
    with pytest.raises(OptionError, match="no socket"):
        Listener("", 0, path)


def test_what_is_wrong_is_found_before_a_model_is_loaded(chat_bundle, tmp_path):
    with Listener("127.0.0.1", 0) as listener:
        port = listener.socket.getsockname()[1]
        for arguments in ([chat_bundle, "--port", port], [chat_bundle, f"b={tmp_path}", "--port", 0]):
            command = [sys.executable, "-m", "runtime", "serve", *map(str, arguments)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
            assert done.returncode == 1
            assert "in use" in done.stderr or str(tmp_path) in done.stderr


@pytest.mark.parametrize("wrong", [{"trusted_proxies": ("x",)}, {"root_path": "llm"}, {"send_seconds": 0}])
def test_options_are_checked(wrong):
    with pytest.raises(OptionError):
        ServerOptions(**wrong)
