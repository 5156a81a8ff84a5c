"""Many more clients than rows: every answer is whole or a quick 429, and afterwards everything is as before."""

import asyncio
import threading
import time

import httpx
import pytest

from runtime import EngineOptions

CLIENTS, SECONDS, ROWS, QUEUE = 48, 4.0, 4, 8


def fields(number, **changes):
    content = "the same beginning, " * (number % 3) + f"number {number % 20}"
    return {
        "messages": [{"role": "user", "content": content}],
        "max_tokens": 4 + number % 17,
        "temperature": 0.8,
        "seed": number % 20,
        "ignore_eos": True,
    } | changes


class Client:
    """One of many: asks until the time is over, and keeps what came of it."""

    def __init__(self, number, http, end, seen):
        self.number, self.http, self.end, self.seen = number, http, end, seen

    async def run(self):
        while time.monotonic() < self.end:
            self.number += CLIENTS
            begun = time.monotonic()
            answer = await self.http.post("/v1/chat/completions", json=fields(self.number))
            self.seen.append((answer.status_code, time.monotonic() - begun, self.number, answer))
            if answer.status_code == 429:
                await asyncio.sleep(0.1)  # less than Retry-After says: this is a test of the limit


async def watch(http, end, waits):
    while time.monotonic() < end:
        begun = time.monotonic()
        assert (await http.get("/health")).status_code == 200
        waits.append(time.monotonic() - begun)
        await asyncio.sleep(0.05)


async def storm(url, seconds):
    seen, waits = [], []
    limits = httpx.Limits(max_connections=CLIENTS + 2)
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as http:
        end = time.monotonic() + seconds
        clients = [Client(number, http, end, seen).run() for number in range(CLIENTS)]
        await asyncio.gather(watch(http, end, waits), *clients)
    return seen, waits


@pytest.fixture(scope="module")
def loaded(start, chat_bundle):
    engine = EngineOptions(max_concurrency=ROWS, max_queue=ROWS + QUEUE, threads=1)
    server = start(chat_bundle, engine, max_queue=QUEUE)
    asyncio.run(storm(server.url, 0.3))  # brings up every thread
    threads = threading.active_count()
    return server, threads, *asyncio.run(storm(server.url, SECONDS))


def test_every_answer_is_whole_or_a_429_that_says_when_to_return(loaded):
    *_, seen, _ = loaded
    statuses = {status for status, *_ in seen}
    assert statuses == {200, 429}
    assert all(int(answer.headers["retry-after"]) >= 1 for status, *_, answer in seen if status == 429)
    good = [(number, answer.json()) for status, _, number, answer in seen if status == 200]
    assert all(answer["usage"]["completion_tokens"] == 4 + number % 17 for number, answer in good)


def test_some_are_refused_some_answered_and_health_goes_on(loaded):
    """How quickly is a figure of tests/bench/serve_load.py: client and server share one interpreter here."""
    *_, seen, waits = loaded
    assert {status for status, *_ in seen} == {200, 429}
    assert waits


def test_answers_are_those_of_a_server_that_has_nothing_else_to_do(loaded):
    server, _, seen, _ = loaded
    sample = {number: answer.json() for status, _, number, answer in seen if status == 200}
    for number in list(sample)[:20]:
        alone = httpx.post(f"{server.url}/v1/chat/completions", json=fields(number)).json()
        assert alone["choices"][0]["message"] == sample[number]["choices"][0]["message"]


def test_afterwards_everything_is_as_before(loaded):
    server, threads, *_ = loaded
    server.wait_until_idle()
    stats = server.model.engine.stats()
    assert (stats.running, stats.waiting, server.app.state.service.admission.inside) == (0, 0, 0)
    assert threading.active_count() <= threads
