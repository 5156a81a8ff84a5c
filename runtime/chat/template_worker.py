"""The child process that renders chat templates: Jinja as transformers sets it up, under the system's own limits.

It is started by file name, imports nothing of this package, and reads requests from stdin: eight bytes of length, then
`marshal` data. An answer is a header (status, whether to retire the process, length) and UTF-8 text.
"""

import functools
import json
import marshal
import os
import signal
import struct
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

HEADER = struct.Struct("<BBQ")
LENGTH = struct.Struct("<Q")
RENDERED, OPENED, FAILED, TOO_LARGE = range(4)
READY = b"r"
MAX_TEXT = 1 << 26  # characters of a prompt
_GRACE = 0.5  # seconds after which the process ends itself, should the parent be gone
_RETIRE_AT = 128 << 20  # bytes of memory that are too much to keep for the next request
_MAX_WORDS = 1000


class TooLargeError(Exception):
    """The prompt is longer than `MAX_TEXT`."""


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests until the input ends."""
    while (length := requests.read(LENGTH.size)) and len(length) == LENGTH.size:
        request = marshal.loads(requests.read(*LENGTH.unpack(length)))  # noqa: S302  # the parent's
        status, words = _limited(*request)
        body = words.encode("utf-8", "surrogatepass")
        answers.write(HEADER.pack(status, _is_large(), len(body)) + body)
        answers.flush()


def answer(source: str, variables: Mapping[str, Any] | None) -> tuple[int, str]:
    """Render a template, or with None open it: a status, and the prompt, the names it reads, or what went wrong."""
    try:
        if variables is None:
            return OPENED, "\0".join(sorted(names_read(source)))
        return RENDERED, _joined(template_of(source).generate(**variables))
    except (MemoryError, TooLargeError):
        return TOO_LARGE, ""
    except Exception as error:  # noqa: BLE001  # a template can raise anything
        with suppress(Exception):
            return FAILED, f"{type(error).__name__}\0{str(error)[:_MAX_WORDS]}"
        return FAILED, f"{type(error).__name__}\0"


def names_read(source: str) -> set[str]:
    """The names that a template reads and does not set; it is compiled, too, so that errors show."""
    from jinja2.meta import TrackingCodeGenerator

    class Tracker(environment().code_generator_class, TrackingCodeGenerator):  # type: ignore[misc]
        pass

    template_of(source)
    tracker = Tracker(environment())
    tracker.optimizer = None
    tracker.visit(environment().parse(source))
    names: set[str] = tracker.undeclared_identifiers
    return names


@functools.lru_cache(16)
def template_of(source: str) -> Any:
    """The compiled template."""
    return environment().from_string(source)


@functools.cache
def environment() -> Any:
    """Jinja's immutable sandbox with the filters, globals and tags that transformers adds for chat templates."""
    from jinja2 import TemplateError, nodes
    from jinja2.compiler import CodeGenerator
    from jinja2.ext import Extension
    from jinja2.parser import Parser
    from jinja2.runtime import Macro
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}` marks the assistant's words for training; here it writes what is inside."""

        tags = {"generation"}  # noqa: RUF012  # as the base class declares it

        def parse(self, parser: Parser) -> nodes.Node:
            """The block as a call of `_inside`."""
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_inside"), [], [], body).set_lineno(line)

        def _inside(self, caller: Macro) -> Any:
            return caller()

    class Generator(CodeGenerator):
        """Computes nothing while it compiles, such as `{{ 9 ** 10**9 }}`."""

        def _output_child_to_const(self, node: nodes.Expr, *args: Any) -> str:
            if not isinstance(node, nodes.TemplateData):
                raise nodes.Impossible
            return super()._output_child_to_const(node, *args)

    def raise_exception(message: Any) -> None:
        raise TemplateError(message)

    made = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[Generation, "jinja2.ext.loopcontrols"],
        optimized=False,
    )
    made.code_generator_class = Generator
    made.filters["tojson"] = _to_json
    made.globals |= {
        "dict": _Dict(),
        "namespace": _namespace(),
        "raise_exception": raise_exception,
        "strftime_now": lambda format: datetime.now().strftime(format),  # noqa: A006  # templates may name it
    }
    return made


class _Dict:
    """`dict` without a way to its class."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        """As `dict.fromkeys`."""
        return dict.fromkeys(*args, **kwargs)


def _namespace() -> type:
    from jinja2.exceptions import SecurityError
    from jinja2.utils import Namespace

    def require_public(name: Any) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise SecurityError(f"a namespace holds no names that begin with an underscore, such as {name!r}")

    class PublicNamespace(Namespace):
        def __init__(*args: Any, **kwargs: Any) -> None:
            self, *rest = args
            attributes = dict(*rest, **kwargs)
            for name in attributes:
                require_public(name)
            Namespace.__init__(self, attributes)

        def __setitem__(self, name: str, value: Any) -> None:
            require_public(name)
            super().__setitem__(name, value)

    return PublicNamespace


def _to_json(
    x: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _joined(pieces: Iterable[str]) -> str:
    texts, length = [], 0
    for text in pieces:
        length += len(text)
        if length > MAX_TEXT:
            raise TooLargeError
        texts.append(text)
    return "".join(texts)


def _limited(source: str, variables: Mapping[str, Any] | None, seconds: float) -> tuple[int, str]:
    """`answer`, in a process that a signal ends after the time: no exception could interrupt one long operation."""
    if not hasattr(signal, "setitimer"):
        return answer(source, variables)  # Windows: the parent alone keeps the time
    signal.setitimer(signal.ITIMER_REAL, seconds + _GRACE)
    try:
        return answer(source, variables)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _is_large() -> bool:
    return _pages(1) > _RETIRE_AT  # not ru_maxrss, which begins with the parent's


def _limit_resources(memory: int) -> None:
    """Bound the memory, forbid files that grow, and let only the parent and the clock end this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the terminal is for the parent
    if hasattr(signal, "SIGALRM"):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    try:
        import resource
    except ImportError:
        return
    for kind, most in (
        (resource.RLIMIT_AS, (_pages(0) or 1 << 30) + memory),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        with suppress(ValueError, OSError):  # macOS has no limit of addresses
            resource.setrlimit(kind, (most, most))


def _pages(field: int) -> int:
    """Bytes of this process: field 0 is all addresses, 1 what is in RAM; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[field]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def main() -> None:
    """Begin with the folders of Jinja and the bytes of memory, which are this process's arguments."""
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    memory, *folders = sys.argv[1:]
    sys.path += folders
    environment()
    _limit_resources(int(memory))
    answers.write(READY)
    answers.flush()
    serve(requests, answers)


if __name__ == "__main__":
    main()
