"""The forecast of a run: phases, settings that had to be reduced, and a check of memory and disk."""

import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from runtime.errors import QuantizationError
from runtime.host.byte_units import format_bytes

from .phases import Phase

_SHARE = 1.05  # of the forecast's disk that must be free


@dataclass(frozen=True)
class Forecast:
    """What a run will take.

    Attributes:
        phases: in their order.
        output: bytes of the new bundle, about.
        memory: bytes that the run may use.
        notes: what is done in smaller steps for lack of memory.
    """

    phases: tuple[Phase, ...]
    output: int
    memory: int
    notes: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """Of all phases."""
        return sum(phase.seconds for phase in self.phases)

    @property
    def peak_memory(self) -> int:
        """Bytes of anonymous memory, at most; files that the system caches are not counted."""
        return max((phase.memory for phase in self.phases), default=0)

    @property
    def work_bytes(self) -> int:
        """Bytes of files that are gone in the end."""
        return sum(phase.disk for phase in self.phases)

    def seconds_left(self, phase: str, done: int, total: int, elapsed: float) -> float | None:
        """Of the whole run, when a phase has taken `elapsed` seconds; None in a phase that it does not know.

        What is over corrects what is left: a machine that was slower than expected in this phase will be in the next.
        """
        names = [each.name for each in self.phases]
        at = next((i for i, name in enumerate(names) if phase.startswith(name)), None)
        if at is None:
            return None
        share = done / total if total else 0.0
        expected = self.phases[at].seconds
        left = elapsed * (1 - share) / share if share > 0.1 else max(0.0, expected - elapsed)
        slower = (elapsed / share) / expected if share > 0.1 and expected > 0 else 1.0
        return left + sum(later.seconds for later in self.phases[at + 1 :]) * min(max(slower, 1.0), 3.0)

    def require_room(self, output: Path) -> None:
        """Refuse to begin what cannot be finished.

        Raises:
            QuantizationError: there is too little memory, or space where `output` will be.
        """
        if self.peak_memory > self.memory:
            raise QuantizationError(
                f"about {format_bytes(self.peak_memory)} of memory are needed, and {format_bytes(self.memory)} may be "
                "used. Close other programs, name a method that needs less (--preset fast), or say that more may be "
                f"used: --memory {format_bytes(self.peak_memory * 1.01).replace(' ', '')}"
            )
        free, needed = free_space(output), int((self.output + self.work_bytes) * _SHARE)
        if free < needed:
            raise QuantizationError(
                f"{output}: about {format_bytes(self.output)} for the bundle and {format_bytes(self.work_bytes)} of "
                f"work files are needed, and {format_bytes(free)} are free. Choose another output, or a method that "
                "needs no text (--preset fast)."
            )

    def as_data(self) -> dict[str, object]:
        """For JSON: seconds and bytes."""
        phases = [vars(phase) | {"seconds": round(phase.seconds, 1)} for phase in self.phases]
        return {
            "phases": phases, "seconds": round(self.seconds, 1), "memory_bytes": self.peak_memory,
            "disk_bytes": self.output + self.work_bytes, "output_bytes": self.output,
            "memory_limit_bytes": self.memory, "notes": list(self.notes),
        }  # fmt: skip

    def lines(self, columns: Callable[[list[tuple[str, ...]], set[int]], Iterable[str]]) -> list[str]:
        """For people, aligned by `columns`."""
        rows: list[tuple[str, ...]] = [("phase", "time", "memory", "work files")]
        rows += [(p.name, in_words(p.seconds), format_bytes(p.memory), format_bytes(p.disk)) for p in self.phases]
        rows.append(("in all", in_words(self.seconds), format_bytes(self.peak_memory), format_bytes(self.work_bytes)))
        told = [*columns(rows, {0}), f"the bundle takes about {format_bytes(self.output)}"]
        return told + ["; ".join(self.notes)] * bool(self.notes)


def in_words(seconds: float) -> str:
    """A duration as people say it.

    Example:
        >>> in_words(8.2), in_words(95), in_words(7300)
        ('8 s', '1 min 35 s', '2 h 2 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def free_space(path: Path) -> int:
    """Bytes that are free where `path` is or will be."""
    folder = path.absolute()
    while not folder.is_dir():
        folder = folder.parent
    return shutil.disk_usage(folder).free
