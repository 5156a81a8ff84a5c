"""What one rendering of a chat template may cost: time, and the size of every value on its way.

A template comes with a model from a stranger. Each operation that can multiply the size of a value is checked before
it runs, so that no single step, which Python could not interrupt, takes long or much memory.
"""

import re
import time
from collections.abc import Callable, ItemsView, Iterable, KeysView, Mapping, ValuesView
from contextvars import ContextVar
from typing import Any

from ..errors import ChatTemplateError

MAX_TEXT = 1 << 24  # characters of one value
_MAX_OUTPUT = 4 * MAX_TEXT  # characters written, those inside macros and the like counted again
MAX_ITEMS = 1 << 18  # elements of one value, its parts' parts included
_CHARACTERS_PER_ITEM = MAX_TEXT // MAX_ITEMS
_MAX_DEPTH = 64
_MAX_WIDTH = 999  # of padding
_MAX_INTEGER_BITS = 1 << 14
_MAX_INDENT = 8


class Budget:
    """What is left of the time and of the output of one rendering."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds
        self._output = _MAX_OUTPUT

    def check_time(self) -> None:
        """Raise ChatTemplateError when the time is over."""
        if time.monotonic() > self._deadline:
            raise ChatTemplateError(
                f"The chat template did not finish within {self._seconds:g} seconds. "
                "Shorten the conversation, or distrust this model's template."
            )

    def spend(self, characters: int) -> None:
        """Count output; raise ChatTemplateError when it is too much, or the time is over."""
        self.check_time()
        self._output -= characters
        if self._output < 0:
            raise _too_much("writes more text")


current: ContextVar[Budget] = ContextVar("onnxlm_template_budget")


def measured(value: Any) -> Any:
    """`value`, unless it is too large; parts that are shared count each time that they occur."""
    _weigh(value, 0, 0)
    return value


def as_text(value: Any) -> str:
    """`value` as a template writes it."""
    return str(value if isinstance(value, str) else measured(value))


def check_method(name: str, owner: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Refuse the call of a string's method whose result would be too large."""
    if name in _METHODS:
        _METHODS[name](owner, *args, **kwargs)


def check_filter(name: str, value: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Refuse a filter whose result would be too large."""
    if name in _FILTERS:
        _FILTERS[name](value, *args, **kwargs)


def check_operator(operator: str, left: Any, right: Any) -> None:
    """Refuse `left operator right` if the result would be too large."""
    if operator == "%" and isinstance(left, str):
        _check_percent(left, right)
    elif operator == "+" and _sized(left) and _sized(right):
        _require_length(len(left) + len(right), left)
    elif operator == "*":
        _check_product(left, right)
    elif operator == "**" and isinstance(left, int) and isinstance(right, int):
        _require_bits(left.bit_length() * max(right, 0))


def check_result(value: Any) -> Any:
    """What a call or a filter gave back, unless it is too large."""
    if isinstance(value, dict):
        return measured(value)
    if _sized(value):
        _require_length(len(value), value)
    return value


def check_json(value: Any, indent: Any, separators: Any) -> None:
    """Refuse to write JSON that would be too large."""
    measured(value)
    shapes = [indent, *(separators or ())]
    if any(shape > _MAX_INDENT if isinstance(shape, int) else len(shape or "") > _MAX_INDENT for shape in shapes):
        raise _too_much("indents further")


def _too_much(what: str) -> ChatTemplateError:
    return ChatTemplateError(f"The chat template {what} than is allowed ({MAX_TEXT} characters, {MAX_ITEMS} items).")


def _weigh(value: Any, weight: int, depth: int) -> int:
    weight += 1
    if isinstance(value, str):
        weight += len(value) // _CHARACTERS_PER_ITEM
    elif isinstance(value, list | tuple | ItemsView | KeysView | ValuesView):
        weight = _weigh_all(value, weight, depth)
    elif isinstance(value, Mapping):
        weight = _weigh_all(value.items(), weight, depth)
    if weight > MAX_ITEMS:
        raise _too_much("builds larger values")
    return weight


def _weigh_all(values: Iterable[Any], weight: int, depth: int) -> int:
    if depth >= _MAX_DEPTH:
        raise ChatTemplateError(f"The chat template, or its data, nests more than {_MAX_DEPTH} levels deep.")
    for value in values:
        weight = _weigh(value, weight, depth + 1)
    return weight


def _sized(value: Any) -> bool:
    return isinstance(value, str | list | tuple)


def _require_length(length: int, like: Any) -> None:
    if length > (MAX_TEXT if isinstance(like, str) else MAX_ITEMS):
        raise _too_much("builds larger values")


def _require_bits(bits: int) -> None:
    if bits > _MAX_INTEGER_BITS:
        raise _too_much("computes larger numbers")


def _check_product(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        _require_bits(left.bit_length() + right.bit_length())
    for value, times in ((left, right), (right, left)):
        if _sized(value) and isinstance(times, int):
            _require_length(len(value) * times, value)
            if not isinstance(value, str):
                _require_length(_weigh(value, 0, 0) * times, value)


def _check_percent(pattern: Any, *args: Any, **kwargs: Any) -> None:
    pattern = as_text(pattern)
    if re.search(r"\d{4}|\*", pattern):
        raise _too_much("pads text further")
    _require_length(len(pattern) + pattern.count("%") * len(as_text([args, kwargs])), pattern)


def _check_braces(pattern: str, *args: Any, **kwargs: Any) -> None:
    if re.search(r"\d{4}|:[^{}]*\{", pattern):
        raise _too_much("pads text further")
    _require_length(len(pattern) + pattern.count("{") * len(as_text([args, kwargs])), pattern)


def _check_replace(text: Any, old: Any, new: Any, count: Any = None) -> None:
    text, old, new = as_text(text), as_text(old), as_text(new)
    found = text.count(old)
    if isinstance(count, int) and 0 <= count < found:
        found = count
    _require_length(len(text) + found * len(new), text)


def _check_join(separator: Any, items: Any, *_: Any, **__: Any) -> None:
    measured(items)
    _require_length(len(as_text(separator)) * len(items), "")


def _check_join_filter(items: Any, d: Any = "", *_: Any, **__: Any) -> None:
    _check_join(d, items)


def _check_width(_: Any, *args: Any, **kwargs: Any) -> None:
    if any(isinstance(size, int) and abs(size) > _MAX_WIDTH for size in (*args, *kwargs.values())):
        raise _too_much("pads text further")


def _check_tabs(text: str, tabsize: int = 8) -> None:
    _require_length(len(text) + text.count("\t") * tabsize, text)


def _check_indent(text: Any, width: Any = 4, *_: Any, **__: Any) -> None:
    text = as_text(text)
    _require_length(len(text) + (text.count("\n") + 1) * (len(width) if isinstance(width, str) else width), text)


_METHODS: dict[str, Callable[..., None]] = {
    "center": _check_width,
    "expandtabs": _check_tabs,
    "format": _check_braces,
    "format_map": _check_braces,
    "join": _check_join,
    "ljust": _check_width,
    "replace": _check_replace,
    "rjust": _check_width,
    "zfill": _check_width,
}
_FILTERS: dict[str, Callable[..., None]] = {
    "center": _check_width,
    "format": _check_percent,
    "indent": _check_indent,
    "join": _check_join_filter,
    "replace": _check_replace,
    "round": _check_width,
    "string": measured,
}
