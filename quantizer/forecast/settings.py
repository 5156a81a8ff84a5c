"""What a run may do in smaller steps where memory or disk is short."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from runtime.host.byte_units import format_bytes

_LEAST_ROWS = 5
_STREAMS = (64, 32, 16)
_KEPT = 4 << 30  # bytes of Hessians, where no work folder was named


@dataclass(frozen=True)
class Settings:
    """How a run uses memory and disk. Codes depend on `rows` and `streams`, and on nothing else here.

    Attributes:
        rows: texts that the model writes at a time.
        streams: that a layer carries when sensitivity is measured.
        at_once: matrices that are quantized beside each other.
        most_kept: bytes of Hessians that are kept on disk; where all take more, they are made again layer by layer.
    """

    rows: int
    streams: int = 128
    at_once: int = 2
    most_kept: int = _KEPT


def smaller(settings: Settings) -> Iterator[tuple[Settings, str]]:
    """Settings that take less memory and more time, one step after the other, and what each step says."""
    if settings.at_once > 1:
        settings = replace(settings, at_once=1)
        yield settings, "one matrix is quantized at a time, on all cores"
    while settings.rows > _LEAST_ROWS:
        settings = replace(settings, rows=max(_LEAST_ROWS, settings.rows // 2))
        yield settings, f"{settings.rows} texts are written at a time: others than with more memory"
    for streams in (count for count in _STREAMS if count < settings.streams):
        settings = replace(settings, streams=streams)
        yield settings, f"sensitivity joins more than {streams} changes, which is less exact"


def fitting(settings: Settings, memory: int, needs: Callable[[Settings], int]) -> tuple[Settings, tuple[str, ...]]:
    """The first of ever smaller settings that need no more than `memory`, and what they say; the last if none does."""
    said: list[str] = []
    needed = needs(settings)
    for step, words in smaller(settings):
        if needed <= memory:
            break
        less = needs(step)
        if less < needed:  # a step that does not help is not taken
            settings, needed = replace(settings, **_changed(settings, step)), less
            said.append(words)
    if said:
        said.insert(0, f"{format_bytes(memory)} of memory may be used")
    return settings, tuple(said)


def _changed(before: Settings, step: Settings) -> dict[str, int]:
    return {name: value for name, value in vars(step).items() if value != getattr(before, name)}
