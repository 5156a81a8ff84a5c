"""How much memory this process may still use, and uses."""

import os
import sys
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_UNKNOWN = 4 << 30  # where the system does not say


def available_memory() -> int:
    """Bytes that can be used without pushing anything out: the system's, or the control group's where that is less."""
    return min(_system_available(), _cgroup_available())


def peak_memory() -> int:
    """Most bytes of RAM that this process has held since it was started."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))
    except (OSError, StopIteration):  # no /proc: this one may count the parent's memory too
        import resource  # not on Windows

        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _system_available() -> int:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return _physical()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), _UNKNOWN)


def _physical() -> int:
    if sys.platform == "win32" or "SC_PHYS_PAGES" not in os.sysconf_names:
        return _UNKNOWN
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _cgroup_available() -> int:
    try:
        limit = (_CGROUP / "memory.max").read_text(encoding="ascii").strip()
        used = int((_CGROUP / "memory.current").read_text(encoding="ascii"))
        return sys.maxsize if limit == "max" else max(0, int(limit) - used)
    except (OSError, ValueError):
        return sys.maxsize
