"""A chat template behind limits on time and memory: it runs in a process that can be killed.

A template comes with a model from a stranger, and one operation of Jinja can take hours or all memory. The process has
Jinja's sandbox as transformers sets it up, so every value is transformers' value; the system enforces the limits.
Processes are started when needed, and kept for the next request.
"""

import atexit
import functools
import importlib.util
import marshal
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ChatTemplateError
from . import template_worker as worker

MEMORY = 160 << 20  # bytes that one process may use
_MAX_SOURCE = 1 << 20  # characters
_OPENING = 5.0  # seconds to compile
_MOST_IDLE = 2  # processes that wait for the next request
_START_SECONDS = 60.0
_GRACE = 0.5  # seconds after which a process is killed that should have ended itself
_POLLS = hasattr(select, "poll")  # Windows has none
_PIPE = 1 << 20  # bytes on their way, where the system allows it: a long conversation goes in one piece
_TRUSTED = "ONNXLM_TRUST_CHAT_TEMPLATES"
# What Python needs to start, and what dates are written by; no keys or tokens of the parent.
_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT", "PYTHONHOME", "TZ", "LANG", "LC_ALL")


class SandboxedTemplate:
    """A compiled chat template.

    Args:
        source: Jinja source.

    Attributes:
        variables: the names that it reads and does not set.

    Raises:
        ChatTemplateError: the source is too long, not a template, or takes too long to compile.
    """

    def __init__(self, source: str) -> None:
        if len(source) > _MAX_SOURCE:
            raise ChatTemplateError(f"The chat template has {len(source)} characters; at most {_MAX_SOURCE} are read.")
        self._source = source
        names = _text(_ask(source, None, _OPENING), "is broken")
        self.variables = frozenset(names.split("\0")) if names else frozenset()

    def render(self, variables: Mapping[str, Any], seconds: float) -> str:
        """The text for these variables, which must be plain data.

        Raises:
            ChatTemplateError: the template raised an error, or exceeded a limit.
        """
        return _text(_ask(self._source, dict(variables), seconds), "failed")


def start_early() -> None:
    """Start a process now, and do not wait for it: it is ready when the first template is opened."""
    if os.environ.get(_TRUSTED) != "1":
        _pool().give(_pool().take())


@dataclass(frozen=True)
class Reply:
    """What became of a request: one of the worker's statuses, and text."""

    status: int
    text: str


class _EndedError(Exception):
    """The process has ended."""


class _OvertimeError(Exception):
    """The process was killed because the time was over."""


def _ask(source: str, variables: Mapping[str, Any] | None, seconds: float) -> Reply:
    """Render `source` with these variables, which are plain data; with None, open it.

    Raises:
        ChatTemplateError: the time is over, or there is no process.
    """
    if os.environ.get(_TRUSTED) == "1":
        return Reply(*worker.answer(source, variables))
    request: Any = (source, variables, seconds)
    payload = marshal.dumps(request)
    for _ in range(2):  # a process may have been killed while it was idle
        try:
            return _pool().ask(payload, seconds)
        except _OvertimeError:
            raise ChatTemplateError(
                f"The chat template did not finish within {seconds:.2g} seconds. "
                "Shorten the conversation, or distrust this model's template."
            ) from None
        except _EndedError:
            continue
    raise ChatTemplateError(
        "The process that renders chat templates ended twice at this template. Distrust this model's template, "
        "or look for what ends processes on this machine."
    )


def _text(reply: Reply, what: str) -> str:
    if reply.status == worker.TOO_LARGE:
        raise ChatTemplateError(
            f"The chat template needs more than is allowed: {MEMORY >> 20} MiB of memory, "
            f"{worker.MAX_TEXT >> 20} Mi characters. Shorten the conversation, or distrust this model's template."
        )
    if reply.status == worker.FAILED:
        kind, _, words = reply.text.partition("\0")
        raise ChatTemplateError(f"The model's chat template {what}: {words or kind}")
    return reply.text


class _Process:
    """One process; one thread at a time talks to it."""

    def __init__(self) -> None:
        program = [_python(), "-I", "-S", str(Path(worker.__file__).absolute()), str(MEMORY), *_jinja_folders()]
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        try:
            self._child = subprocess.Popen(  # noqa: S603  # this interpreter, and a file of ours
                program,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                pipesize=_PIPE,
                cwd=Path(sys.executable).anchor,
            )
        except OSError as error:
            raise _no_process(str(error)) from error
        self._ready = self._overtime = False
        if _POLLS:
            self._answers = select.poll()
            self._answers.register(self._child.stdout, select.POLLIN)  # type: ignore[arg-type]

    def ask(self, payload: bytes, seconds: float) -> tuple[Reply, bool]:
        """Send a request, and wait for the reply; the second value tells that the process should not be kept.

        Raises:
            _EndedError, _OvertimeError: there is no reply.
        """
        try:
            if not self._ready:
                self._start()
            with self._clock(seconds):
                return self._exchange(payload, seconds)
        except (_EndedError, OSError):
            raise (_OvertimeError if self._ended_by_clock() else _EndedError) from None
        except BaseException:  # overtime; or Ctrl-C: a reply may follow that nobody reads
            self.kill()
            raise

    def kill(self) -> None:
        """End the process, if it has not ended."""
        self._child.kill()
        self._child.wait()
        for stream in (self._child.stdin, self._child.stdout):
            with suppress(OSError):  # what was not yet sent has nowhere to go
                stream.close()  # type: ignore[union-attr]

    def _start(self) -> None:
        with self._clock(_START_SECONDS):
            self._wait(_START_SECONDS)
            self._read(len(worker.READY))
        self._ready = True

    def _ended_by_clock(self) -> bool:
        """Whether the time was over, now that the process has closed its end; it leaves nothing behind."""
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(_GRACE)
        self.kill()
        return self._overtime or (_POLLS and self._child.returncode == -signal.SIGALRM)

    @contextmanager
    def _clock(self, seconds: float) -> Iterator[None]:
        """Kill the process after `seconds` if nothing else limits its time: a thread costs 0.1 ms."""
        if _POLLS:
            yield
            return
        timer = threading.Timer(seconds, self._stop)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _stop(self) -> None:
        self._overtime = True
        self._child.kill()

    def _wait(self, seconds: float) -> None:
        """Until there is something to read."""
        if _POLLS and not self._answers.poll((seconds + _GRACE) * 1000):
            raise _OvertimeError

    def _exchange(self, payload: bytes, seconds: float) -> tuple[Reply, bool]:
        stdin = self._child.stdin
        assert stdin is not None
        stdin.write(worker.LENGTH.pack(len(payload)))
        stdin.write(payload)
        stdin.flush()
        self._wait(seconds)
        status, retire, length = worker.HEADER.unpack(self._read(worker.HEADER.size))
        if length > 4 * worker.MAX_TEXT:
            raise _EndedError
        return Reply(status, self._read(length).decode("utf-8", "surrogatepass")), bool(retire)

    def _read(self, count: int) -> bytes:
        assert self._child.stdout is not None
        data = self._child.stdout.read(count)
        if len(data) < count:
            raise _EndedError
        return data


class _Pool:
    """The idle processes of this process; a fork gets a pool of its own."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._lock = threading.Lock()
        self._idle: list[_Process] = []
        atexit.register(self._close)

    def ask(self, payload: bytes, seconds: float) -> Reply:
        """One request to one process."""
        process = self.take()
        reply, retire = process.ask(payload, seconds)
        if retire:
            process.kill()
        else:
            self.give(process)
        return reply

    def take(self) -> _Process:
        """An idle process, or a new one."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return _Process()

    def give(self, process: _Process) -> None:
        """Keep a process for the next request, unless enough wait."""
        with self._lock:
            if len(self._idle) < _MOST_IDLE:
                self._idle.append(process)
                return
        process.kill()

    def _close(self) -> None:
        if self.owner == os.getpid():
            for process in self._idle:
                process.kill()


_pools: list[_Pool] = []  # the last one is used; those before it belong to the parents of a fork


def _pool() -> _Pool:
    if not _pools or _pools[-1].owner != os.getpid():
        _pools.append(_Pool())  # by two threads at once: no lock, which a fork could leave closed
    return _pools[-1]


def _python() -> str:
    if not sys.executable or getattr(sys, "frozen", False):
        raise _no_process("there is no Python interpreter to start")
    return sys.executable


@functools.cache
def _jinja_folders() -> tuple[str, ...]:
    specs = [importlib.util.find_spec(name) for name in ("jinja2", "markupsafe")]
    folders = [str(Path(spec.origin).parent.parent) for spec in specs if spec and spec.origin]
    return tuple(dict.fromkeys(folders))


def _no_process(words: str) -> ChatTemplateError:
    return ChatTemplateError(
        f"The process that renders chat templates cannot be started: {words}. If you trust the templates of your "
        f"models, set {_TRUSTED}=1: they are then rendered here, without limits on time and memory."
    )
