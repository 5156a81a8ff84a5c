"""A real server on localhost, with uvicorn in a thread, over a tiny model whose chat template knows tool calls."""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import uvicorn

from runtime import EngineOptions
from runtime.bundle.bundle import open_bundle
from runtime.client import Model
from runtime.encoder.model import Encoder
from runtime.ort.executor import OnnxExecutor
from runtime.server.app import create_app
from runtime.server.options import ServerOptions

TEMPLATE = (
    "{% if tools %}{{ '<|im_start|>system\n' }}{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    "<tool_call><|im_end|>\n{% endif %}"
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + (message['content'] or '') }}"
    "{{ '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@dataclass
class Server:
    """A running server."""

    url: str
    app: Any
    models: dict[str, Model]

    def client(self, **options: Any) -> openai.OpenAI:
        """OpenAI's own client; it does not try again, so that every error is seen."""
        return openai.OpenAI(**({"base_url": f"{self.url}/v1", "api_key": "none", "max_retries": 0} | options))

    @property
    def model(self) -> Model:
        """The first model."""
        return next(iter(self.models.values()))

    @property
    def busy(self) -> bool:
        """Whether anything runs or waits in the first model's engine."""
        stats = self.model.engine.stats()
        return bool(stats.running or stats.waiting)

    def wait_until_idle(self, seconds: float = 20.0) -> None:
        """Until nothing is inside, and nothing runs or waits."""
        end = time.monotonic() + seconds
        while self.app.state.service.admission.inside or self.busy:
            assert time.monotonic() < end, "requests were left behind"
            time.sleep(0.005)


class Faulty:
    """An executor whose steps can be held, slowed down, or made to fail."""

    def __init__(self, inner: OnnxExecutor) -> None:
        self._inner = inner
        self.gate = threading.Event()
        self.gate.set()
        self.seconds = 0.0
        self.failures: list[Exception] = []  # raised by the next steps, one each
        self.steps = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def prefill(self, *arguments: Any) -> Any:
        self._before()
        return self._inner.prefill(*arguments)

    def prefill_without_logits(self, *arguments: Any) -> Any:
        self._before()
        return self._inner.prefill_without_logits(*arguments)

    def decode(self, *arguments: Any) -> Any:
        self._before()
        return self._inner.decode(*arguments)

    def _before(self) -> None:
        self.steps += 1
        self.gate.wait(20)
        time.sleep(self.seconds)
        if self.failures:
            raise self.failures.pop()


@contextmanager
def running(
    models: dict[str, Model], options: ServerOptions | None = None, encoders: dict[str, Encoder] | None = None
) -> Iterator[Server]:
    app = create_app(models, options, encoders)
    config = uvicorn.Config(app, port=0, log_config=None, access_log=False, ws="none", timeout_graceful_shutdown=5)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, name="uvicorn")
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield Server(f"http://127.0.0.1:{port}", app, models)
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="session")
def chat_bundle(make_checkpoint: Callable[..., Path], make_bundle: Callable[..., Path]) -> Path:
    """The tiny Llama with room for 2,048 tokens and a template for tools."""
    checkpoint = make_checkpoint(max_position_embeddings=2048)
    config = checkpoint / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"chat_template": TEMPLATE}))
    return make_bundle(checkpoint)


@pytest.fixture(scope="module")
def start() -> Iterator[Callable[..., Server]]:
    """Start servers that end with the module."""
    with ExitStack() as stack:

        def start(bundle: Path, engine: EngineOptions | None = None, *, executor: Any = None, **options: Any) -> Server:
            model = Model(bundle, "cpu", engine or EngineOptions(max_concurrency=4, threads=1), executor)
            stack.callback(model.close)
            return stack.enter_context(running({"tiny": model}, ServerOptions(**options)))

        yield start


@pytest.fixture(scope="module")
def faulty(chat_bundle: Path) -> Faulty:
    """An executor to give to `start`."""
    return Faulty(OnnxExecutor(open_bundle(chat_bundle), "cpu", slots=4, threads=1))


@pytest.fixture(scope="module")
def server(chat_bundle: Path, start: Callable[..., Server]) -> Server:
    """A server that nobody disturbs."""
    return start(chat_bundle)


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    """OpenAI's client of that server."""
    with server.client() as client:
        yield client


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    """A plain client of that server."""
    with httpx.Client(base_url=server.url, timeout=30) as client:
        yield client


@pytest.fixture
def request_log() -> Iterator[list[dict[str, Any]]]:
    """The figures that are logged of every request."""
    lines: list[dict[str, Any]] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.figures)

    log, handler = logging.getLogger("onnxlm.requests"), Keep()
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    yield lines
    log.removeHandler(handler)
    log.setLevel(level)
