"""Checks that options share: a value of the right type and range, or an error that names the option and the range."""

import math
import operator
from typing import Any


def integer(name: str, value: Any, low: int, high: int | None = None) -> int:
    """`value` as a plain int within [low, high]; booleans and fractions are refused with ValueError."""
    accepted = f"an integer of at least {low}" if high is None else f"an integer from {low} to {high}"
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < low or (high is not None and number > high):
        raise ValueError(f"{name} must be {accepted}, got {value!r}")
    return number


def real(name: str, value: Any, low: float, high: float, *, above: bool = False) -> float:
    """`value` as a finite float within [low, high], or (low, high] with `above`; else ValueError."""
    accepted = f"a number {'above' if above else 'from'} {low:g} {'up ' if above else ''}to {high:g}"
    try:
        number = math.nan if isinstance(value, bool | str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not (low <= number <= high) or (above and number == low):
        raise ValueError(f"{name} must be {accepted}, got {value!r}")
    return number


def one_of(name: str, value: Any, accepted: tuple[str, ...]) -> str:
    """`value` if it is one of the accepted words; else ValueError."""
    if not isinstance(value, str) or value not in accepted:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, accepted))}, got {value!r}")
    return value
