"""The server as a process: uvicorn, with a first signal that drains and a second one that ends."""

import gc
import logging
import signal
import socket
import sys
import time
from types import FrameType

import uvicorn
from starlette.applications import Starlette

from ..errors import DeviceLostError
from .listener import Listener
from .logging import LogThread
from .request_log import JsonLines
from .state import AppState

_log = logging.getLogger("onnxlm.server")
# Seconds after which a thread lets others run. At each of its system calls the event loop waits that long for each
# thread that is busy in Python; with Python's own five milliseconds that made a tenth of a second of one /health.
_SWITCH_SECONDS = 0.0005
_FILES = 65536


class DrainingServer(uvicorn.Server):
    """uvicorn, except that after the first SIGTERM or SIGINT it still listens until the last request has ended.

    Meanwhile /ready says 503, /health answers, and new requests for tokens get 503. A second signal ends at once.
    """

    def __init__(self, config: uvicorn.Config, service: AppState) -> None:
        super().__init__(config)
        self._service = service
        self._deadline: float | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say where."""
        spare_the_collector()
        await super().startup(sockets)
        _log.info("serving %s at %s", ", ".join(self._service.names), self._service.address)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to drain; the second time, end."""
        if self._deadline is not None:
            self.should_exit = self.force_exit = True
            return
        self._service.draining = True
        self._deadline = time.monotonic() + self._service.options.drain_seconds
        _log.info(
            "%s: %d requests are being finished; again to end at once",
            signal.Signals(sig).name,
            self._service.admission.inside,
        )

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second: True when it is time to end."""
        if self._service.lost is not None and not self._service.admission.inside:
            return True
        if self._deadline is not None:
            late = time.monotonic() >= self._deadline
            self.force_exit = self.force_exit or late
            if late or not self._service.admission.inside:
                return True
        return await super().on_tick(counter)


def run_server(app: Starlette, listener: Listener) -> None:
    """Serve at a socket that listens already, until a signal ends it; then close it.

    Raises:
        DeviceLostError: the GPU was lost; its exit code tells a supervisor to start the server again.
    """
    config = uvicorn.Config(
        app,
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,  # ours are believed from --trusted-proxies only
        timeout_keep_alive=30,
        timeout_graceful_shutdown=5,
        lifespan="on",
        ws="none",
    )
    _raise_file_limit()
    sys.setswitchinterval(_SWITCH_SECONDS)
    service: AppState = app.state.service
    service.address = listener.address
    if listener.open_to_all and not service.options.api_keys:
        _log.warning("everybody who reaches this machine may use the server: give --api-key-file, or another --host")
    with listener:
        DrainingServer(config, service).run(sockets=[listener.socket])
    if service.lost is not None:
        raise DeviceLostError(service.lost)


def spare_the_collector() -> None:
    """What exists before the first request stays until the end: looking it through took up to 0.3 s of one /health."""
    gc.collect()
    gc.freeze()


def _raise_file_limit() -> None:
    """Every connection is a file. Where there are no more, nobody can connect, and /health is not answered either."""
    try:
        import resource
    except ImportError:  # not on Windows
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def set_up_logging(log_format: str) -> None:
    """Send the log to stderr by a thread of its own, as words or as one JSON object a line."""
    handler = LogThread(sys.stderr)
    words = logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s")
    handler.setFormatter(JsonLines() if log_format == "json" else words)
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
