"""How much memory this process may still use, and uses."""

import os
import sys
from collections.abc import Collection
from pathlib import Path

from .cgroups import ControlGroups

_IMPORTED = 100 << 20  # Python with NumPy and ONNX
_UNKNOWN = 4 << 30  # where the system does not say


def available_memory() -> int:
    """Bytes that can be used without swapping: the system's, or the control groups' where that is less."""
    return min(_system_available(), ControlGroups().memory_left())


def shared_kv_memory(bundles: Collection[Path]) -> int:
    """Bytes for the keys and values of each of several models that are not loaded yet.

    Half of what their weights leave of the free memory, in equal shares.
    """
    weights = sum(file.stat().st_size for folder in bundles for file in folder.rglob("*") if file.is_file())
    return max(1, (available_memory() - weights) // 2 // len(bundles))


def peak_memory() -> int:
    """Most bytes of RAM that this process has held since it was started."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))
    except (OSError, StopIteration):  # no /proc: this one may count the parent's memory too
        import resource  # not on Windows

        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def own_memory() -> int:
    """Bytes that belong to this process now, without copies of files; a guess where the system does not say."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return _IMPORTED
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(("RssAnon:", "RssShmem:")))


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
