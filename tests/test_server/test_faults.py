"""Clients that go away, and engines that fail: nothing is left behind, and everybody else goes on."""

import json
import socket
import threading
import time

import httpx
import openai
import pytest

from runtime.errors import ExecutionError

MESSAGES = [{"role": "user", "content": "Hi"}]
STAGES = ["queued", "prefill", "decode", "last token"]


@pytest.fixture(scope="module")
def shaky(start, chat_bundle, faulty):
    """A server whose steps the tests hold, slow down and break."""
    return start(chat_bundle, executor=faulty, stall_seconds=0.5, ping_seconds=0.05)


@pytest.fixture(autouse=True)
def calm(faulty):
    yield
    faulty.failures.clear()
    faulty.seconds = 0.0
    faulty.gate.set()


def wait_for(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def connect(server, path="/v1/chat/completions", **changes):
    """Send a request on a bare socket, which can be closed at any moment."""
    fields = {"model": "tiny", "messages": MESSAGES, "max_tokens": 60, "ignore_eos": True} | changes
    fields = {name: value for name, value in fields.items() if value is not None}
    body = json.dumps(fields).encode()
    host, port = server.url.removeprefix("http://").split(":")
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    connection = socket.create_connection((host, int(port)))
    connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return connection


def inside(server):
    stats = server.model.engine.stats()
    return stats.running + stats.waiting


def leave_at(stage, server, faulty, stream, **changes):
    """One request whose client leaves at this stage."""
    others, steps = [], faulty.steps
    if stage in ("queued", "prefill"):
        faulty.gate.clear()
        others = [connect(server) for _ in range(2)] if stage == "queued" else []
        if others:
            wait_for(lambda: faulty.steps > steps and inside(server) >= 2)
        connection = connect(server, stream=stream)
        wait_for(lambda: faulty.steps > steps and server.app.state.service.admission.inside == len(others) + 1)
        if others:
            wait_for(lambda: server.model.engine.stats().waiting >= 1)
    else:
        faulty.seconds = 0.002
        connection = connect(server, stream=stream, **({"max_tokens": 60 if stage == "decode" else 2} | changes))
        wait_for(lambda: faulty.steps >= steps + 2)  # the prompt, and the step of the second token
    connection.close()
    if stage == "prefill":
        wait_for(lambda: server.app.state.service.admission.inside == 0)  # the cancel has arrived
    for other in others:
        other.close()
    faulty.gate.set()
    faulty.seconds = 0.0
    server.wait_until_idle()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("stage", STAGES)
def test_a_client_that_leaves_leaves_nothing_behind(shaky, faulty, stage, stream):
    leave_at(stage, shaky, faulty, stream)
    scheduler, threads = shaky.model.engine.core.scheduler, threading.active_count()
    for _ in range(25):
        leave_at(stage, shaky, faulty, stream)
    assert threading.active_count() <= threads + 3  # those that prepare requests, if they were not all there yet
    stats = shaky.model.engine.stats()
    assert (stats.running, stats.waiting) == (0, 0)
    wait_for(lambda: scheduler.pool.total - scheduler.pool.free == scheduler.cached.blocks)


def test_a_client_that_leaves_does_not_disturb_its_neighbours(shaky, faulty):
    with shaky.client() as client:
        alone = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=30).choices[0]
        faulty.seconds = 0.005
        stream = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=30, stream=True)
        connection = connect(shaky)
        first = next(stream)
        connection.close()
        text = "".join(c.choices[0].delta.content or "" for c in [first, *stream])
    assert text == alone.message.content


def test_the_log_says_that_a_client_left(shaky, faulty, request_log):
    leave_at("decode", shaky, faulty, True)
    wait_for(lambda: any(line["status"] == 499 for line in request_log))
    line = next(line for line in request_log if line["status"] == 499)
    assert (line["reason"], line["stream"]) == ("disconnected", True)
    assert line["generated_tokens"] < 60


def test_a_stream_pings_while_nothing_comes(shaky, faulty):
    faulty.gate.clear()
    connection = connect(shaky, stream=True, max_tokens=1)
    received = b""
    while b": ping\n\n" not in received:
        received += connection.recv(4096)
    faulty.gate.set()
    while b"[DONE]" not in received:
        received += connection.recv(4096)
    connection.close()
    assert b'"finish_reason":"length"' in received


def test_a_failed_step_fails_its_request_and_no_other(shaky, faulty):
    with shaky.client() as client:
        faulty.failures = [ExecutionError("planted")]
        with pytest.raises(openai.InternalServerError, match="planted"):
            client.chat.completions.create(model="tiny", messages=MESSAGES)
        assert (
            client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=2).usage.completion_tokens == 2
        )


def test_a_failure_within_a_stream_is_an_event(shaky, faulty):
    faulty.seconds = 0.005
    with shaky.client() as client:
        stream = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=60, stream=True)
        next(stream)
        faulty.failures = [ExecutionError("planted"), ExecutionError("planted")]
        with pytest.raises(openai.APIError, match="planted"):
            list(stream)
        assert client.models.list().data
    shaky.wait_until_idle()


def test_health_sees_an_engine_that_stands_still(shaky, faulty):
    def health():
        return httpx.get(f"{shaky.url}/health").status_code, httpx.get(f"{shaky.url}/ready").status_code

    assert health() == (200, 200)
    faulty.gate.clear()
    connection = connect(shaky)
    wait_for(lambda: health() == (503, 503))
    faulty.gate.set()
    wait_for(lambda: health() == (200, 200))
    connection.close()
    shaky.wait_until_idle()


class Failing:
    """An executor whose steps fail while it is told so."""

    def __init__(self, bundle):
        from runtime.bundle.bundle import open_bundle
        from runtime.ort.executor import OnnxExecutor

        self._inner = OnnxExecutor(open_bundle(bundle), "cpu", slots=1, threads=1)
        self.failing = True

    def __getattr__(self, name):
        if self.failing and name in ("prefill", "decode"):
            raise ZeroDivisionError("planted")
        return getattr(self._inner, name)


def test_an_engine_that_dies_is_an_error_and_a_red_health(start, chat_bundle, caplog):
    server = start(chat_bundle)
    server.model.engine.core.scheduler.admit = lambda _: 1 / 0
    with server.client() as client:
        for _ in range(2):
            with pytest.raises(openai.InternalServerError, match="engine stopped"):
                client.chat.completions.create(model="tiny", messages=MESSAGES)
    assert httpx.get(f"{server.url}/health").status_code == 503
    assert "the engine stopped" in caplog.text


def test_a_server_whose_requests_all_fail_is_ill_until_one_succeeds(start, chat_bundle):
    executor = Failing(chat_bundle)
    server = start(chat_bundle, executor=executor)
    seen = []
    with server.client() as client:
        for _ in range(6):
            with pytest.raises(openai.InternalServerError, match="planted"):
                client.chat.completions.create(model="tiny", messages=MESSAGES)
            seen.append(httpx.get(f"{server.url}/health").status_code)
        executor.failing = False
        client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=2)
    assert seen == [200] * 4 + [503] * 2
    assert httpx.get(f"{server.url}/health").status_code == 200


RESPONSE = {"path": "/v1/responses", "messages": None, "max_tokens": None, "input": "Hi", "max_output_tokens": 60}


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_a_response_ends_it_and_nothing_is_stored(shaky, faulty, stream):
    stored = len(shaky.app.state.service.responses)
    for _ in range(25):
        leave_at("decode", shaky, faulty, stream, **RESPONSE)
    assert len(shaky.app.state.service.responses) == stored
    stats = shaky.model.engine.stats()
    assert (stats.running, stats.waiting) == (0, 0)


def test_a_failure_within_a_streamed_response_is_its_end(shaky, faulty):
    faulty.seconds = 0.005
    with shaky.client() as client:
        stream = client.responses.create(model="tiny", input="Hi", max_output_tokens=60, stream=True)
        kinds = [next(stream).type for _ in range(5)]
        faulty.failures = [ExecutionError("planted"), ExecutionError("planted")]
        *_, last = stream
    assert kinds[-1] == "response.output_text.delta"
    assert (last.type, last.response.status) == ("response.failed", "failed")
    assert "planted" in last.response.error.message
    shaky.wait_until_idle()
