"""Clients that ask for a stream and do not read it: after the send timeout their place is free; nobody else notices."""

import json
import socket
import time

import httpx
import pytest

from runtime import EngineOptions

SECONDS = 0.3
MESSAGES = [{"role": "user", "content": "Hi"}]
# Fills every buffer between server and client within a few hundred tokens.
HUGE = {"stream": True, "max_tokens": 1900, "ignore_eos": True, "temperature": 1, "seed": 1}
BODIES = {
    "/v1/chat/completions": {"messages": MESSAGES, "logprobs": True, "top_logprobs": 20, "n": 4} | HUGE,
    "/v1/completions": {"prompt": "Hi", "logprobs": 20, "n": 4} | HUGE,
}


@pytest.fixture(scope="module")
def impatient(start, chat_bundle):
    return start(chat_bundle, EngineOptions(max_concurrency=5, threads=1), send_seconds=SECONDS)


def stall(server, path):
    """A connection whose small buffer nobody empties."""
    body = json.dumps(BODIES[path]).encode()
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect((host, int(port)))
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return connection


@pytest.mark.parametrize("path", BODIES)
def test_a_reader_that_stops_loses_its_place_and_no_neighbour_does(impatient, request_log, path):
    ask = {"messages": MESSAGES, "max_tokens": 40, "temperature": 0, "ignore_eos": True}
    alone = httpx.post(f"{impatient.url}/v1/chat/completions", json=ask).json()["choices"]
    with stall(impatient, path):
        while not impatient.busy:
            time.sleep(0.005)
        beside = httpx.post(f"{impatient.url}/v1/chat/completions", json=ask, timeout=60).json()["choices"]
        impatient.wait_until_idle(30)  # while the connection is open
    assert beside == alone
    line = next(line for line in request_log if line["status"] == 499)
    assert (line["path"], line["reason"]) == (path, "disconnected")
    assert line["generated_tokens"] < 4 * 1900
