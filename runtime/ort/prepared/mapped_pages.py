"""Pages of a mapped file that were read at the start and are not read again: the process lets go of them."""

import ctypes
import sys
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_PAGE = 4096
_DONTNEED = 4  # of madvise, on Linux
_LEAST = 16 * _PAGE  # smaller ranges are not worth a call

Range = tuple[int, int]  # first byte, and the byte behind the last


@dataclass(frozen=True)
class Mapping:
    """A part of a file, from `offset` on, in memory at `start` to `stop`."""

    start: int
    stop: int
    offset: int


def release(file: Path, ranges: Iterable[Range]) -> int:
    """Let go of byte ranges of `file`, which nobody writes to, wherever it is mapped; returns how many bytes.

    Ranges do not overlap.

    Nothing is lost: what is read again is mapped again from the file. Does nothing where the system is not Linux.
    """
    if sys.platform != "linux":
        return 0
    library, released = ctypes.CDLL(None), 0
    wanted = sorted(one for one in ranges if one[1] - one[0] >= _LEAST)
    for mapping in mappings(file):
        last = bisect_left(wanted, (mapping.offset + mapping.stop - mapping.start,))
        first = bisect_left(wanted, (mapping.offset,))
        for start, stop in _inside(mapping, wanted[max(0, first - 1) : last]):  # one may begin before the mapping
            if not library.madvise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), _DONTNEED):
                released += stop - start
    return released


def mappings(file: Path) -> Iterator[Mapping]:
    """Where this process has mapped `file`."""
    name = str(file.resolve())
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        words = line.split(maxsplit=5)
        if len(words) == 6 and words[5] == name:
            start, _, stop = words[0].partition("-")
            yield Mapping(int(start, 16), int(stop, 16), int(words[2], 16))


def _inside(mapping: Mapping, ranges: Iterable[Range]) -> Iterator[Range]:
    """Addresses of the whole pages of `ranges` within a mapping."""
    size = mapping.stop - mapping.start
    for first, last in ranges:
        start = -(-max(0, first - mapping.offset) // _PAGE) * _PAGE
        stop = min(size, last - mapping.offset) // _PAGE * _PAGE
        if stop - start >= _LEAST:
            yield mapping.start + start, mapping.start + stop


def trim_heap() -> None:
    """Give free memory of the C library's heap back to the system, where it is glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(ctypes.c_size_t(0))
