"""Limits of the control groups that this process is in, from its own group up to the root: memory and processor time.

Both versions are read: the one hierarchy of v2, and v1's hierarchies per controller (a machine may have both). Inside a
container the groups above its own are not visible, and the file system shows the container's as the root.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_UNLIMITED_V1 = 1 << 60  # v1 writes the largest multiple of a page
_FREEABLE = ("inactive_file", "active_file", "slab_reclaimable", "total_inactive_file", "total_active_file")


@dataclass(frozen=True)
class ControlGroups:
    """The groups of one process.

    Args:
        root: of the file system; another one in tests.
    """

    root: Path = Path("/")

    def memory_left(self) -> int:
        """Bytes that every group still allows; `sys.maxsize` without a limit. Page cache can be freed and is no use."""
        left = [_left_v2(folder) for folder in self._folders("")]
        left += [_left_v1(folder) for folder in self._folders("memory")]
        return min((each for each in left if each is not None), default=sys.maxsize)

    def processors(self) -> float:
        """Processors whose time every group allows, such as 1.5; infinite without a quota."""
        quotas = [_quota_v2(folder) for folder in self._folders("")]
        quotas += [_quota_v1(folder) for folder in self._folders("cpu")]
        return min((each for each in quotas if each is not None), default=float("inf"))

    def _folders(self, controller: str) -> Iterator[Path]:
        """The own group of a hierarchy and those above it, in the order of the tree; "" is v2's."""
        own, mounts = self._own(controller), self._mounts(controller)
        for shown, place in mounts if own is not None else ():
            inside = _relative(own or "/", shown)
            yield self._under(place)
            for i in range(len(inside)):
                yield self._under(place).joinpath(*inside[: i + 1])

    def _own(self, controller: str) -> str | None:
        for line in self._lines("proc/self/cgroup"):
            _, names, path = (*line.split(":", 2), "", "")[:3]
            if controller in names.split(","):
                return path
        return None

    def _mounts(self, controller: str) -> Iterator[tuple[str, str]]:
        """The group that each mount shows as its root, and where."""
        for line in self._lines("proc/self/mountinfo"):
            before, _, after = line.partition(" - ")
            fields, kind = before.split(), after.split()
            if len(fields) < 5 or len(kind) < 3:
                continue
            of_v2 = not controller and kind[0] == "cgroup2"
            if of_v2 or (controller and kind[0] == "cgroup" and controller in kind[2].split(",")):
                yield fields[3], fields[4]

    def _lines(self, name: str) -> list[str]:
        try:
            return (self.root / name).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return []

    def _under(self, place: str) -> Path:
        return self.root / place.lstrip("/")


def _relative(own: str, shown: str) -> tuple[str, ...]:
    """The way from the mount's root to the own group; nothing where the mount does not show it."""
    try:
        return PurePosixPath(own).relative_to(PurePosixPath(shown)).parts
    except ValueError:
        return ()


def _left_v2(folder: Path) -> int | None:
    limits = [_number(folder / name) for name in ("memory.max", "memory.high")]
    return _left([limit for limit in limits if limit is not None], folder, "memory.current")


def _left_v1(folder: Path) -> int | None:
    limit = _number(folder / "memory.limit_in_bytes")
    limits = [limit] if limit is not None and limit < _UNLIMITED_V1 else []
    return _left(limits, folder, "memory.usage_in_bytes")


def _left(limits: list[int], folder: Path, used_name: str) -> int | None:
    used = _number(folder / used_name)
    if not limits or used is None:
        return None
    return max(0, min(limits) - max(0, used - _freeable(folder)))


def _freeable(folder: Path) -> int:
    """Page cache and the like, of the group and those below it: v1 counts those under names of their own."""
    try:
        pairs = (line.split() for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines())
        stat = {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[0] in _FREEABLE}
    except (OSError, ValueError):
        return 0
    totals = {name: value for name, value in stat.items() if name.startswith("total_")}
    return sum((totals or stat).values())


def _quota_v2(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text(encoding="ascii").split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _quota_v1(folder: Path) -> float | None:
    quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
    return quota / period if quota and period and quota > 0 else None


def _number(path: Path) -> int | None:
    """The number in a file; None for "max", and where there is no such file."""
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
