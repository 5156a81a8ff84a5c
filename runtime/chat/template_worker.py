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
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from itertools import islice
from types import BuiltinMethodType
from typing import Any, BinaryIO

HEADER = struct.Struct("<BBQ")
LENGTH = struct.Struct("<Q")
RENDERED, OPENED, FAILED, TOO_LARGE = range(4)
READY = b"r"
MAX_TEXT = 1 << 24  # characters of a prompt
_RETIRE_AT = 64 << 20  # bytes of memory that are too much to keep for the next request
_MAX_WORDS = 1000
_BATCH = 1024  # pieces of a prompt between two looks at its length
_PLAIN_JSON = json.JSONEncoder(ensure_ascii=False)
# Names that the sandbox may give without its questions: values, and methods that change nothing.
_OF_DICT = frozenset(dir(dict))  # these are methods before they are keys
_OF_STR = frozenset(name for name in dir(str) if name[0] != "_") - {"format", "format_map"}
_OF_LOOP = frozenset(("first", "last", "index", "index0", "length", "previtem", "nextitem", "revindex", "revindex0"))


class TooLargeError(Exception):
    """The prompt is longer than `MAX_TEXT`."""


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests until the input ends."""
    while (length := requests.read(LENGTH.size)) and len(length) == LENGTH.size:
        status, body = _encoded_answer(requests.read(*LENGTH.unpack(length)))
        answers.write(HEADER.pack(status, _is_large(), len(body)) + body)
        answers.flush()


def _encoded_answer(request: bytes) -> tuple[int, bytes]:
    try:
        status, words = _limited(*marshal.loads(request))  # noqa: S302  # the parent's
        return status, words.encode("utf-8", "surrogatepass")
    except MemoryError:
        return TOO_LARGE, b""


def answer(source: str, variables: Mapping[str, Any] | None) -> tuple[int, str]:
    """Render a template, or with None open it: a status, and the prompt, the names it reads, or what went wrong."""
    try:
        if variables is None:
            return OPENED, "\0".join(sorted(names_read(source)))
        template = template_of(source)
        return RENDERED, _joined(template.root_render_func(template.new_context(variables)))
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
    made = _sandbox()(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_generation(), "jinja2.ext.loopcontrols"],
        optimized=False,
    )
    made.code_generator_class = _generator()
    made.filters["tojson"] = _to_json
    made.globals |= {
        "dict": _Dict(),
        "namespace": _namespace(),
        "raise_exception": _raise_exception,
        "strftime_now": lambda format: datetime.now().strftime(format),  # noqa: A006  # templates may name it
    }
    return made


def _sandbox() -> Any:
    """Jinja's sandbox with short ways to what templates read most; each gives what the long way gives."""
    from jinja2.runtime import LoopContext

    quick = _quick_calls()
    long_way = quick.getattr
    spaces = _namespace()

    class Sandbox(quick):  # type: ignore[misc, valid-type]
        def getattr(self, obj: Any, attribute: str) -> Any:
            kind = type(obj)
            if kind is dict:
                if attribute not in _OF_DICT:
                    return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
            elif kind is str:
                if attribute in _OF_STR:
                    return getattr(obj, attribute)
            elif kind is LoopContext:
                if attribute in _OF_LOOP:
                    return getattr(obj, attribute)
            elif kind is spaces and attribute[0] != "_":
                held = object.__getattribute__(obj, "_Namespace__attrs")
                if attribute in held:
                    return held[attribute]
            return long_way(self, obj, attribute)

    return Sandbox


def _quick_calls() -> Any:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    long_item, long_call = ImmutableSandboxedEnvironment.getitem, ImmutableSandboxedEnvironment.call

    class Calls(ImmutableSandboxedEnvironment):
        def getitem(self, obj: Any, argument: Any) -> Any:
            try:
                return obj[argument]
            except LookupError:
                if type(obj) is dict and type(argument) is str and argument not in _OF_DICT:
                    return self.undefined(obj=obj, name=argument)
            except TypeError:
                pass
            return long_item(self, obj, argument)

        def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805  # as Jinja has it
            if type(__obj) is BuiltinMethodType and type(__obj.__self__) is str:
                kwargs.pop("_loop_vars", None)  # what the compiler adds for the context
                kwargs.pop("_block_vars", None)
                return __obj(*args, **kwargs)
            return long_call(__self, __context, __obj, *args, **kwargs)

    return Calls


def _generation() -> type:
    from jinja2 import nodes
    from jinja2.ext import Extension
    from jinja2.parser import Parser
    from jinja2.runtime import Macro

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

    return Generation


def _generator() -> type:
    from jinja2 import nodes
    from jinja2.compiler import CodeGenerator

    class Generator(CodeGenerator):
        """Computes nothing while it compiles, such as `{{ 9 ** 10**9 }}`."""

        def _output_child_to_const(self, node: nodes.Expr, *args: Any) -> str:
            if not isinstance(node, nodes.TemplateData):
                raise nodes.Impossible
            return super()._output_child_to_const(node, *args)

    return Generator


def _raise_exception(message: Any) -> None:
    from jinja2 import TemplateError

    raise TemplateError(message)


class _Dict:
    """`dict` without a way to its class."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        """As `dict.fromkeys`."""
        return dict.fromkeys(*args, **kwargs)


@functools.cache
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
    if indent is None and separators is None and not ensure_ascii and not sort_keys:
        return _PLAIN_JSON.encode(x)
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _joined(pieces: Iterator[str]) -> str:
    texts, length = [], 0
    while batch := list(islice(pieces, _BATCH)):
        texts.append("".join(batch))
        length += len(texts[-1])
        if length > MAX_TEXT:
            raise TooLargeError
    return "".join(texts)


def _limited(source: str, variables: Mapping[str, Any] | None, seconds: float) -> tuple[int, str]:
    """`answer`, in a process that a signal ends after the time: no exception could interrupt one long operation."""
    if not hasattr(signal, "setitimer"):
        return answer(source, variables)  # Windows: the parent alone keeps the time
    signal.setitimer(signal.ITIMER_REAL, seconds)
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
    file = _statm()
    return int(os.pread(file, 200, 0).split()[field]) * os.sysconf("SC_PAGE_SIZE") if file >= 0 else 0


@functools.cache
def _statm() -> int:
    """This process's figures as an open file, or -1: to open it anew for each request would cost more than a prompt."""
    try:
        return os.open("/proc/self/statm", os.O_RDONLY)
    except OSError:
        return -1


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
