"""What keeps the event loop free for /health: a turnstile before the routes, and a thread that writes the log."""

import asyncio
import gc
import io
import logging
import threading

import pytest

from runtime.server import process
from runtime.server.limits import AT_A_TIME, ConnectionThrottle
from runtime.server.logging import LogThread


async def begun_in_each_round(paths):
    """Which requests began in which round of the loop, all of them having come at once."""
    seen = [[]]

    async def app(scope, receive, send):
        seen[-1].append(scope["path"])

    door = ConnectionThrottle(app, {"/health"})
    tasks = [asyncio.ensure_future(door({"type": "http", "path": path}, None, None)) for path in paths]
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        seen.append([])
    return seen


def test_a_crowd_comes_in_a_few_at_a_time():
    rounds = asyncio.run(begun_in_each_round(["/v1/models"] * 50))
    assert max(map(len, rounds)) == AT_A_TIME
    assert sum(map(len, rounds)) == 50


def test_a_probe_does_not_stand_behind_the_crowd():
    first = next(r for r in asyncio.run(begun_in_each_round(["/v1/models"] * 50 + ["/health"])) if r)
    assert first == ["/health"]


class Pipe(io.StringIO):
    """A stream that nobody reads, until it is opened."""

    def __init__(self):
        super().__init__()
        self.open, self.stuck = threading.Event(), threading.Event()

    def write(self, text):
        self.stuck.set()
        assert self.open.wait(20)
        return super().write(text)


@pytest.fixture
def pipe():
    stream = Pipe()
    yield stream
    stream.open.set()


def record(words):
    return logging.LogRecord("x", logging.INFO, "", 0, words, (), None)


def test_a_log_that_nobody_reads_holds_nobody_up_and_keeps_a_bounded_number_of_lines(pipe):
    log = LogThread(pipe, most=10)
    log.emit(record("first"))
    assert pipe.stuck.wait(20)
    for number in range(100):
        log.emit(record(f"line {number}"))
    pipe.open.set()
    log.close()
    lines = pipe.getvalue().splitlines()
    assert lines[:2] + lines[-2:-1] == ["first", "line 0", "line 9"]
    assert lines[-1].startswith("90 lines of the log were dropped")


def test_what_was_logged_last_is_written_at_the_end():
    stream = io.StringIO()
    log = LogThread(stream)
    for number in range(1000):
        log.emit(record(f"{number}"))
    log.close()
    assert stream.getvalue().split() == [str(number) for number in range(1000)]


def test_a_closed_stream_does_not_end_the_thread(monkeypatch):
    monkeypatch.setattr(logging, "raiseExceptions", False)
    before = threading.active_count()
    stream = io.StringIO()
    stream.close()
    log = LogThread(stream)
    log.emit(record("lost"))
    assert threading.active_count() == before + 1
    log.close()
    assert threading.active_count() == before


def test_what_exists_at_the_start_is_not_searched_for_cycles():
    """A full collection over a vocabulary and all modules took up to 0.3 s."""
    try:
        process.spare_the_collector()
        assert gc.get_freeze_count() > 10_000
    finally:
        gc.unfreeze()
