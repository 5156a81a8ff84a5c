"""What the server says about itself, and the small parts behind it."""

import json
import logging
import re
import time
from dataclasses import replace

import pytest

from runtime.engine.engine import EngineStats
from runtime.errors import OptionError
from runtime.server.health import Heartbeat
from runtime.server.limits import RequestLimiter
from runtime.server.openai.errors import ApiError
from runtime.server.openai.token_texts import TokenTexts
from runtime.server.options import ServerOptions
from runtime.server.request_log import JsonLines

IDLE = EngineStats(0, 0, 0, 8, 0, 0, 0, 0, 0, heartbeat=0.0, alive=True)
CHAT = {"messages": [{"role": "user", "content": "Hello secret"}], "max_tokens": 5}


class Watched:
    """An engine's figures and a clock, both set by hand."""

    def __init__(self):
        self.stats, self.now = IDLE, 0.0
        self.heartbeat = Heartbeat(lambda: self.stats, 10.0, lambda: self.now)

    def at(self, now, **changes):
        self.now, self.stats = now, replace(self.stats, **changes)
        return self.heartbeat.observe()


def test_an_idle_engine_may_stand_still_and_wake_up():
    watched = Watched()
    assert watched.at(1000.0) is None
    assert watched.at(1000.0, waiting=1) is None  # its first look at the work comes later
    assert watched.at(1009.0) is None


def test_a_busy_engine_must_not_stand_still():
    watched = Watched()
    watched.at(0.0, running=1, heartbeat=0.0)
    assert watched.at(9.0, heartbeat=9.0) is None
    assert watched.at(18.0) is None
    assert "stood still for 10 seconds" in watched.at(19.0)
    assert watched.at(20.0, heartbeat=20.0) is None


def test_an_engine_whose_thread_ended_is_dead():
    assert "stopped" in Watched().at(0.0, alive=False)


def test_admission_counts_before_anything_is_done():
    admission = RequestLimiter(2, 100)
    with admission.enter(10), admission.enter(10):
        with pytest.raises(ApiError, match="of 2 that may") as caught:
            admission.check()
        assert (caught.value.status, caught.value.headers["retry-after"]) == (429, "1")
    assert admission.inside == 0


def test_admission_bounds_bytes_but_lets_one_large_request_in():
    admission = RequestLimiter(5, 100)
    with admission.enter(500), pytest.raises(ApiError, match="500 bytes"), admission.enter(1):
        pass
    with admission.enter(60), admission.enter(40):
        assert admission.inside == 2


def test_bodies_that_arrive_slowly_count_too():
    admission = RequestLimiter(5, 100)
    with admission.reading() as arrived, admission.reading() as other:
        arrived(60)
        other(40)
        with pytest.raises(ApiError, match="100 bytes"):
            other(1)
        with pytest.raises(ApiError, match="100 bytes"), admission.enter(1):
            pass
    with admission.enter(100):
        assert admission.inside == 1


@pytest.mark.parametrize("options", [{"max_queue": -1}, {"max_body": 0}, {"ping_seconds": 0}, {"api_keys": ("",)}])
def test_options_are_checked(options):
    with pytest.raises(OptionError):
        ServerOptions(**options)


def test_metrics_have_the_names_of_dashboards(http):
    http.post("/v1/chat/completions", json=CHAT | {"ignore_eos": True})
    text = http.get("/metrics").text
    names = set(re.findall(r"^onnxlm_(\w+)\{", text, re.M))
    assert names >= {"num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "request_success_total"}
    assert names >= {"prompt_tokens_total", "generation_tokens_total", "request_queue_time_seconds_count"}
    assert names >= {"time_to_first_token_seconds_bucket", "inter_token_latency_seconds_bucket"}
    assert "e2e_request_latency_seconds_bucket" in names
    assert re.search(r'onnxlm_request_success_total\{finished_reason="length",model_name="tiny"\} [1-9]', text)
    assert float(re.search(r'onnxlm_inter_token_latency_seconds_count\{model_name="tiny"\} (\S+)', text)[1]) >= 4


def wait_for_lines(log, count):
    """A line is written after its answer was sent."""
    end = time.monotonic() + 20
    while len(log) < count:
        assert time.monotonic() < end
        time.sleep(0.005)


def test_one_line_a_request_with_figures_and_no_text(http, request_log):
    http.post("/v1/chat/completions", json=CHAT)
    http.post("/v1/chat/completions", json={})
    wait_for_lines(request_log, 2)
    good, bad = request_log
    assert (good["model"], good["status"], good["generated_tokens"]) == ("tiny", 200, 5)
    assert good["total"] >= good["queue"] + good["prefill"] + good["decode"] > 0
    assert (bad["status"], bad["reason"]) == (400, "invalid_request_error")
    assert "secret" not in str(request_log)


def test_a_line_of_json_is_json():
    record = logging.LogRecord("onnxlm.requests", logging.INFO, "", 0, "words", (), None)
    assert json.loads(JsonLines().format(record))["message"] == "words"
    record.figures = {"status": 200}
    assert json.loads(JsonLines().format(record))["status"] == 200


def test_tokens_and_back(http):
    ids = http.post("/tokenize", json={"prompt": "the Zürich 🙂", "return_token_strs": True}).json()
    text = http.post("/detokenize", json={"tokens": ids["tokens"]}).json()
    assert text["prompt"] == "the Zürich 🙂"
    assert (ids["count"], ids["max_model_len"]) == (len(ids["tokens"]), 2048)
    assert ids["token_strs"][0] == "t"


def test_tokens_of_a_conversation_are_those_of_its_prompt(http):
    count = http.post("/tokenize", json={"messages": CHAT["messages"]}).json()["count"]
    usage = http.post("/v1/chat/completions", json=CHAT).json()["usage"]
    assert count == usage["prompt_tokens"]


def test_bytes_of_every_token_make_up_the_text(server):
    texts, tokenizer = TokenTexts(server.model.tokenizer), server.model.tokenizer
    text = "the Zürich 🙂\n\ttab"
    assert b"".join(map(texts.content, tokenizer.encode(text))) == text.encode()
    assert texts.text(tokenizer.encode("🙂")[0]).startswith("bytes:\\xf0")


def test_version_status_and_document(http):
    status = http.get("/status").json()
    assert http.get("/version").json()["version"] == status["version"]
    assert status["models"][0]["rows"] == 4
    assert "/v1/chat/completions" in http.get("/openapi.json").json()["paths"]
