"""What this machine offers: cores, instruction sets, memory and how fast it reads it."""

import os
import platform
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from .cgroups import ControlGroups
from .memory import available_memory

# Flag in /proc/cpuinfo → what it is called here. Those that decide how fast quantized products run.
_FLAGS = {
    "avx2": "AVX2", "avx512f": "AVX-512", "avx_vnni": "VNNI", "avx512_vnni": "VNNI", "avx512_bf16": "BF16",
    "avx512_fp16": "FP16", "amx_int8": "AMX int8", "amx_bf16": "AMX bf16",
    "asimddp": "dot product", "i8mm": "int8 matmul", "bf16": "BF16", "sve": "SVE",
}  # fmt: skip
_WIDTHS = (("avx512f", "avx512"), ("avx2", "avx2"), ("asimd", "neon"))
_DOTS = (("avx512_vnni", "vnni"), ("avx_vnni", "vnni"), ("i8mm", "i8mm"), ("asimddp", "dotprod"))
_VECTOR = ("avx", "amx", "fma", "f16c", "sse4", "asimd", "i8mm", "bf16", "sve", "sme", "fphp")
_INTEGER_DOT = ("VNNI", "dot product", "int8 matmul")


@dataclass(frozen=True)
class Machine:
    """One machine. `cores` are those this process may use; bandwidth in bytes per second, 0 if not measured."""

    system: str
    processor: str
    cores: int
    features: tuple[str, ...]
    available_memory: int
    read_bandwidth: float

    @property
    def integer_dot(self) -> str | None:
        """The instruction set that multiplies 8-bit integers quickly, if there is one."""
        return next((name for name in _INTEGER_DOT if name in self.features), None)


def this_machine(*, measure: bool = True) -> Machine:
    """Look at this machine; with `measure` also read memory for about a quarter of a second."""
    fields = _processor_fields()
    cores = usable_cores()
    return Machine(
        system=f"{platform.system()} {platform.machine()}",
        processor=fields.get("model name") or platform.processor() or "unknown",
        cores=cores,
        features=_features(fields),
        available_memory=available_memory(),
        read_bandwidth=read_bandwidth(cores) if measure else 0.0,
    )


def usable_cores() -> int:
    """Cores that this process may run on: its affinity, or the control groups' quota where that is less."""
    return max(1, min(len(_allowed()), int(min(ControlGroups().processors(), 1 << 20))))


def compute_threads() -> int:
    """Threads for arithmetic: one per physical core that may be used, and no more than the quota has time for."""
    physical = {_siblings(cpu) for cpu in _allowed()}
    return max(1, min(len(physical), usable_cores()))


def read_bandwidth(threads: int, size: int = 256 << 20) -> float:
    """Bytes per second with which `threads` threads read memory: the best of three passes over `size` bytes."""
    import numpy as np

    size = min(size, available_memory() // 4)
    parts = np.array_split(np.ones(size // 8, np.int64), threads)
    best = 0.0
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(3):
            started = time.perf_counter()
            list(pool.map(np.add.reduce, parts))
            best = max(best, size / (time.perf_counter() - started))
    return best


def processor_flags() -> tuple[str, ...]:
    """The processor's vector instruction sets, as the system names them, sorted; its name where it names none."""
    fields = _processor_fields()
    flags = (fields.get("flags") or fields.get("Features") or "").split()
    return tuple(sorted({flag for flag in flags if flag.startswith(_VECTOR)})) or (platform.processor(),)


def processor_name() -> str:
    """The processor by the vector instructions that products of quantized weights use, such as "avx512-vnni"."""
    flags = set(processor_flags())
    wide = next((name for flag, name in _WIDTHS if flag in flags), platform.machine().lower() or "unknown")
    return "-".join([wide, *(name for flag, name in _DOTS if flag in flags)][:2])


def _allowed() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def _siblings(cpu: int) -> str:
    """The logical processors of the same core, as the system writes them; where it does not say, a core of its own."""
    try:
        return Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text(encoding="ascii")
    except OSError:
        return str(cpu)


def _processor_fields() -> dict[str, str]:
    """The first processor's entries in /proc/cpuinfo; empty where there is none."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _features(fields: dict[str, str]) -> tuple[str, ...]:
    flags = set((fields.get("flags") or fields.get("Features") or "").split())
    return tuple(dict.fromkeys(name for flag, name in _FLAGS.items() if flag in flags))
