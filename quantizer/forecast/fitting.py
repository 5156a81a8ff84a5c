"""The settings that fit into memory, found step by step."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from runtime.host.byte_units import format_bytes

from ..settings import AT_ONCE, Settings

_LEAST_ROWS = 5
_STREAMS = (64, 32, 16)
_FLOAT_TEXT = 3 << 29  # bytes of weights that are kept twice while text is written
_TEXT_IN_8_BITS = 4 << 30


def bits_of_text(weight_bytes: int) -> int:
    """In how many bits a model writes calibration text, by the bytes of its float weights.

    Kernels keep a copy of all weights. In 8 bits the text is as good as the model's own: it loses 0.003 nats a token.
    """
    if weight_bytes <= _FLOAT_TEXT:
        return 32
    return 8 if weight_bytes // 4 <= _TEXT_IN_8_BITS else 4


def smaller(settings: Settings) -> Iterator[tuple[str, int, str]]:
    """What takes less memory and more time, step after step: a field of `Settings`, its value, and what that means."""
    if settings.at_once > AT_ONCE:
        yield "at_once", AT_ONCE, "two matrices are quantized at a time"
    if settings.at_once > 1:
        yield "at_once", 1, "one matrix is quantized at a time, on all cores"
    rows = settings.rows
    while rows > _LEAST_ROWS:
        rows = max(_LEAST_ROWS, rows // 2)
        yield "rows", rows, f"{rows} texts are written at a time: others than with more memory"
    for streams in (count for count in _STREAMS if count < settings.streams):
        yield "streams", streams, f"sensitivity joins more than {streams} changes, which is less exact"


def fitting(settings: Settings, memory: int, needs: Callable[[Settings], int]) -> tuple[Settings, tuple[str, ...]]:
    """The first of ever smaller settings that need no more than `memory`, and what they say; the last if none does."""
    said: dict[str, str] = {}
    needed = needs(settings)
    for field, value, words in smaller(settings):
        if needed <= memory:
            break
        step = replace(settings, **{field: value})
        if (less := needs(step)) < needed:  # a step that does not help is not taken
            settings, needed = step, less
            said[field] = words
    return settings, (f"{format_bytes(memory)} of memory may be used", *said.values()) if said else ()
