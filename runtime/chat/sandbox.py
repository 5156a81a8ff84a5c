"""Jinja for chat templates: what transformers offers them, inside a sandbox with limits on time and size.

Every loop, macro, call, filter, operator and literal of the template is compiled to report to `template_limits`, so
the limits need neither signals nor threads. Of the methods of data, only those known to be harmless can be reached.
"""

import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from ..errors import ChatTemplateError, OnnxlmError
from . import template_limits as limits

_MAX_SOURCE = 1 << 18
_FILTERS = (
    "abs attr capitalize center count d default dictsort e escape first float forceescape format groupby indent int "
    "items join last length list lower map max min reject rejectattr replace reverse round safe select selectattr sort "
    "string sum title tojson trim truncate unique upper urlencode wordcount"
)
_STRING_METHODS = (
    "capitalize casefold center count endswith expandtabs find format format_map index isalnum isalpha isascii "
    "isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle isupper join ljust lower lstrip "
    "partition removeprefix removesuffix replace rfind rindex rjust rpartition rsplit rstrip split splitlines "
    "startswith strip swapcase title upper zfill"
)
_METHODS: tuple[tuple[Any, frozenset[str]], ...] = (
    (str, frozenset(_STRING_METHODS.split())),
    (dict, frozenset({"copy", "get", "items", "keys", "values"})),
    (list | tuple, frozenset({"copy", "count", "index"})),
    (int | float | bytes | type, frozenset()),
)


class SandboxedTemplate:
    """A compiled chat template.

    Raises:
        ChatTemplateError: the source is too long or not a template.
    """

    def __init__(self, source: str) -> None:
        if len(source) > _MAX_SOURCE:
            raise ChatTemplateError(f"The chat template has {len(source)} characters; at most {_MAX_SOURCE} are read.")
        environment = _Environment()
        self.syntax: nodes.Template = _guarded(lambda: environment.parse(source), "is broken")
        self._template = _guarded(lambda: environment.from_string(source), "is broken")

    def render(self, variables: Mapping[str, Any], seconds: float) -> str:
        """The text for these variables, which must be plain data.

        Raises:
            ChatTemplateError: the template raised an error, or exceeded a limit.
        """
        budget = limits.Budget(seconds)
        token = limits.current.set(budget)
        try:
            text: str = _guarded(lambda: _collect(self._template.generate(**variables), budget), "failed")
        finally:
            limits.current.reset(token)
        return text


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, finalize=_write, extensions=["jinja2.ext.loopcontrols", _Generation]
        )
        self.filters["tojson"] = _to_json
        self.filters = {name: _limited_filter(name, self.filters[name]) for name in _FILTERS.split()}
        self.globals = {
            "cycler": self.globals["cycler"],
            "dict": _make_dict,
            "joiner": self.globals["joiner"],
            "namespace": _Namespace,
            "raise_exception": _raise_exception,
            "range": self.globals["range"],
            "strftime_now": _strftime_now,
        }

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        return super()._generate(_Metering().visit(source), *args, **kwargs)

    # What the metered syntax tree calls

    def tick(self, characters: int) -> None:
        """One turn of a loop or macro, which writes this much fixed text."""
        limits.current.get().spend(characters)

    def container(self, value: Any) -> Any:
        """A list, tuple or dictionary that the template wrote."""
        limits.current.get().check_time()
        return limits.measured(value)

    def concatenate(self, *parts: Any) -> str:
        """The `~` operator."""
        limits.current.get().check_time()
        texts = [limits.as_text(part) for part in parts]
        return "".join(limits.measured(texts))

    # What Jinja calls

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        for kind, allowed in _METHODS:
            if isinstance(obj, kind):
                return attr in allowed
        return super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        limits.current.get().check_time()
        limits.check_operator(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        limits.current.get().check_time()
        method = getattr(__obj, "__wrapped__", __obj)  # the sandbox wraps str.format
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str):
            args = tuple(list(a) if isinstance(a, Iterator) else a for a in args)
            limits.check_method(method.__name__, owner, args, kwargs)
        elif isinstance(__obj, Macro):
            limits.measured([args, kwargs])
        return limits.check_result(super().call(__context, __obj, *args, **kwargs))


class _Metering(NodeTransformer):
    """Inserts the calls of `tick`, `container` and `concatenate`."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        return self._metered_body(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:  # noqa: N802
        return self._metered_body(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:  # noqa: N802
        return self._metered_body(node)

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        return _call("container", [self.generic_visit(node)])

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802
        return _call("container", [self.generic_visit(node)])

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        visited = self.generic_visit(node)
        return _call("container", [visited]) if node.ctx == "load" else visited

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _call("concatenate", node.nodes)

    def _metered_body(self, node: nodes.For | nodes.Macro | nodes.CallBlock) -> nodes.Node:
        written = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_call("tick", [nodes.Const(written)])))
        return node


class _Generation(Extension):
    """`{% generation %}` marks the assistant's words for training; here it writes what is inside."""

    tags = {"generation"}  # noqa: RUF012  # as the base class declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Namespace(Namespace):
    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            _require_public(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _require_public(name)
        super().__setitem__(name, value)

    def __repr__(self) -> str:  # the inherited one would write all that namespaces hold, again and again
        return "<Namespace>"


def _require_public(name: str) -> None:
    if name.startswith("_"):
        raise SecurityError(f"a namespace holds no names that begin with an underscore, such as {name!r}")


def _call(name: str, args: list[Any]) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(name), args, [], None, None)


def _limited_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    skipped = 1 if hasattr(function, "jinja_pass_arg") else 0

    @functools.wraps(function)
    def limited(*args: Any, **kwargs: Any) -> Any:
        limits.current.get().check_time()
        before, value, rest = args[:skipped], args[skipped], args[skipped + 1 :]
        if name == "join" and isinstance(value, Iterator):
            value = list(value)
        limits.check_filter(name, value, rest, kwargs)
        return limits.check_result(function(*before, value, *rest, **kwargs))

    return limited


@pass_context
def _write(_: Context, value: Any) -> str:
    text = limits.as_text(value)
    limits.current.get().spend(len(text))
    return text


def _to_json(
    x: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    limits.check_json(x, indent, separators)
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _make_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


def _raise_exception(message: Any) -> None:
    raise TemplateError(limits.as_text(message))


def _strftime_now(pattern: Any) -> str:
    text = limits.as_text(pattern)
    if len(text) > 200 or re.search(r"\d{2}", text):
        raise TemplateError(f"strftime_now: {text[:200]!r} is not a plain date format")
    return datetime.now().strftime(text)


def _collect(pieces: Iterator[str], budget: limits.Budget) -> str:
    texts = []
    for text in pieces:
        budget.spend(len(text))
        texts.append(text)
    return "".join(texts)


def _guarded(step: Callable[[], Any], what: str) -> Any:
    try:
        return step()
    except OnnxlmError:
        raise
    except Exception as error:  # a template can raise anything
        words = str(error) or type(error).__name__
        raise ChatTemplateError(f"The model's chat template {what}: {words[:1000]}") from error
