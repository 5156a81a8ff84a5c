"""Figures for Prometheus, with the names that vLLM's dashboards look for behind the prefix `onnxlm_`."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    generate_latest,
    start_http_server,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..engine.engine import EngineStats
from ..engine.generation import RequestState
from ..errors import OptionError

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LABEL = "model_name"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_TOKENS = tuple(float(1 << power) for power in range(18))


class Metrics:
    """The figures of one server, in a registry of its own."""

    def __init__(self, engines: Mapping[str, Callable[[], EngineStats]]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Engines(engines))
        ProcessCollector(registry=self._registry)  # process_*: memory, CPU time, open files
        self._success = Counter(
            "onnxlm_request_success",
            "Answers that ended, by reason.",
            [_LABEL, "finished_reason"],
            registry=self._registry,
        )
        self._http = Counter(
            "onnxlm_http_requests", "Requests, by status.", ["path", "status"], registry=self._registry
        )
        self._first = self._histogram("time_to_first_token_seconds", "From submission to the first token.", _SECONDS)
        self._between = self._histogram("inter_token_latency_seconds", "From token to token.", _SECONDS)
        self._total = self._histogram("e2e_request_latency_seconds", "From submission to the end.", _SECONDS)
        self._queue = self._histogram("request_queue_time_seconds", "From submission to admission.", _SECONDS)
        self._prefill = self._histogram("request_prefill_time_seconds", "From admission to the first token.", _SECONDS)
        self._decode = self._histogram("request_decode_time_seconds", "From the first token to the last.", _SECONDS)
        self._prompt = self._histogram("request_prompt_tokens", "Tokens of a prompt.", _TOKENS)
        self._generated = self._histogram("request_generation_tokens", "Tokens of an answer.", _TOKENS)

    def token_after(self, model: str, seconds: float) -> None:
        """A token came this long after the one before it."""
        self._between.labels(model).observe(seconds)

    def ended(self, model: str, answers: Sequence[RequestState]) -> None:
        """These answers to one request have ended."""
        for answer in answers:
            times, sequence = answer.timings, answer.sequence
            self._success.labels(model, sequence.finish_reason or "cancelled").inc()
            self._prompt.labels(model).observe(sequence.prompt_length)
            self._generated.labels(model).observe(sequence.generated)
            for histogram, start, end in (
                (self._first, times.submitted, times.first_token),
                (self._total, times.submitted, times.finished),
                (self._queue, times.submitted, times.admitted),
                (self._prefill, times.admitted, times.first_token),
                (self._decode, times.first_token, times.finished),
            ):
                if start is not None and end is not None:
                    histogram.labels(model).observe(end - start)

    def answered(self, path: str, status: int) -> None:
        """A request for tokens was answered with this status."""
        self._http.labels(path, str(status)).inc()

    def text(self) -> bytes:
        """The exposition."""
        return generate_latest(self._registry)

    def listen(self, host: str, port: int) -> None:
        """Answer GET /metrics at a port of its own, from a thread, without keys.

        Raises:
            OptionError: the port cannot be used.
        """
        try:
            start_http_server(port, host, self._registry)
        except OSError as error:
            raise OptionError(f"--metrics-port {port}: cannot listen there ({error.strerror or error}).") from error

    def _histogram(self, name: str, words: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"onnxlm_{name}", words, [_LABEL], buckets=buckets, registry=self._registry)


class _Engines(Collector):
    """Reads the engines when somebody asks, instead of counting a second time."""

    def __init__(self, engines: Mapping[str, Callable[[], EngineStats]]) -> None:
        self._engines = engines

    def collect(self) -> Iterable[Metric]:
        stats = {name: look() for name, look in self._engines.items()}
        for name, words, value in _GAUGES:
            gauge = GaugeMetricFamily(f"onnxlm_{name}", words, labels=[_LABEL])
            for model, figures in stats.items():
                gauge.add_metric([model], value(figures))
            yield gauge
        for name, words, value in _COUNTERS:
            counter = CounterMetricFamily(f"onnxlm_{name}", words, labels=[_LABEL])
            for model, figures in stats.items():
                counter.add_metric([model], value(figures))
            yield counter


_Reading = tuple[str, str, Callable[[EngineStats], float]]
_GAUGES: tuple[_Reading, ...] = (
    ("num_requests_running", "Answers that have a slot.", lambda s: s.running),
    ("num_requests_waiting", "Answers that wait for one.", lambda s: s.waiting),
    ("kv_cache_bytes", "Most bytes that keys, values and states may take.", lambda s: s.kv_bytes),
    ("kv_cache_usage_perc", "Share of the KV memory in use, from 0 to 1.", lambda s: kv_usage(s)),
)
_COUNTERS: tuple[_Reading, ...] = (
    ("prompt_tokens", "Tokens of admitted prompts.", lambda s: s.prompt_tokens),
    ("generation_tokens", "Tokens generated.", lambda s: s.generated_tokens),
    ("prefix_cache_hits", "Prompt tokens found in the cache.", lambda s: s.cached_tokens),
    ("prefix_cache_queries", "Prompt tokens looked for in the cache.", lambda s: s.prompt_tokens),
    ("num_preemptions", "Answers that were set back for want of memory.", lambda s: s.preemptions),
)


def kv_usage(stats: EngineStats) -> float:
    """The share of the KV memory in use."""
    return stats.kv_blocks_used / stats.kv_blocks_total if stats.kv_blocks_total else 0.0
